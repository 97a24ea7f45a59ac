"""An agent that is a user's function, or an environment of a library, in worker processes, so that it cannot corrupt, block or end the driver."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.claims import Sandboxes
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.process import AgentProcess
from rljob_trainer.agents.program import Program
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.workers.process import WorkerGone, WorkerLost
from rljob_trainer.workers.workers import AnyWorkers, NotLoaded, OwnWorkers, PodWorkers, Tries

AgentPods = PodWorkers[AgentProcess]


class WorkerAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    def __init__(
        self, spec: AgentSpec, pods: AgentPods | None = None, address: str = "", sandboxes: Sandboxes | None = None
    ):
        """`pods`: where it runs; None: next to the driver. `address`: of the driver, for these pods."""
        program = self._program = Program.of(spec)
        self.spec = spec
        start = partial(AgentProcess.start, program.command, spec.timeout_seconds, spec.env)
        self._workers: AnyWorkers[AgentProcess] = pods or OwnWorkers(start)
        self._in_pods = pods is not None
        self._sandboxes = sandboxes or Sandboxes()
        self._endpoint = Endpoint(address)
        self.tools: list[dict[str, Any]] = []
        """JSON schemas of what the policy may call, once it has started."""

    @property
    def ready(self) -> bool:
        return self._workers.ready and self._sandboxes.ready

    async def start(self) -> None:
        """Raises ConfigurationError when file or library is missing, cannot be imported, or lacks what the spec names. Pods are waited for only where
        the chat template shows what they have loaded."""
        if not self._in_pods:
            self._program.require_file()
        await self._endpoint.start()
        if self._in_pods and self._program.kind != "tools":
            return
        try:
            self.tools = (await self._workers.start()).hello["tools"]
        except NotLoaded as error:
            raise self._unloadable(error) from error

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, ConfigurationError, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)  # a volume that is slow is not on the agent's clock
        session, reply = await self._reply(session, _values(session.prompt, row))
        if "error" in reply:
            raise self._failed(reply["kind"], reply["error"])
        if (trajectory := reply["trajectory"]) is None:
            said = "had no room for a turn" if self._program.is_library else "the function returned None"
            raise self._failed("none", said)
        return self._rollout(session, **trajectory)

    def _rollout(
        self,
        session: Session,
        sequences: list[list[int]],
        rewards: list[float],
        reward: float,
        metrics: dict[str, float],
    ) -> Rollout:
        """What the function returned. Raises AgentFailed."""
        try:
            rollout = session.rollout(sequences, rewards)
        except PolicyError as error:
            raise self._failed("value", f"returned a Trajectory that cannot be: {error}") from error
        if rollout is None:
            raise self._failed(
                "value", "returned a Trajectory without one answer of policy.generate behind its context"
            )
        return replace(rollout, reward=rollout.reward + reward, metrics=metrics)

    async def _reply(self, session: Session, values: dict[str, Any]) -> tuple[Session, dict[str, Any]]:
        """What a process answers in the end, with the session in which it asked. A trajectory whose process is lost begins anew in another."""
        tries = Tries()
        while True:
            try:
                return session, await self._tried(session, values, tries.alone)
            except WorkerLost as error:
                if not isinstance(error, WorkerGone) or tries.are_over(error):
                    raise self._failed(error.kind, str(error)) from error
                session = session.anew()
            except NotLoaded as error:
                raise self._unloadable(error) from error

    async def _tried(self, session: Session, values: dict[str, Any], alone: bool) -> dict[str, Any]:
        """`alone`: nothing else runs in the process meanwhile. Raises WorkerLost: the process is ended."""
        async with self._workers.one(alone) as process, self._sandboxes.claims() as session.claims:
            url = self._endpoint.open(session)
            try:
                return await process.rollout(values | {"base_url": url}, session)
            finally:
                self._endpoint.close(url)

    async def stop(self) -> None:
        await asyncio.gather(self._workers.stop(), self._endpoint.stop())

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        program = self._program
        named = f"environment {program.target}: " if program.is_library and program.target not in reason else ""
        return AgentFailed(kind, program.field, program.target, named + reason)

    def _unloadable(self, error: NotLoaded) -> ConfigurationError:
        return self._program.error(f"cannot be loaded: {error}", self._program.fix(self._in_pods))


def _values(prompt: Prompt, row: Any) -> dict[str, Any]:
    """What the function is called with."""
    fields = {name: getattr(prompt, name) for name in ("text", "answer", "data_source")}
    return {"prompt": fields | {"tokens": list(prompt.tokens)}, "row": dict(row)}
