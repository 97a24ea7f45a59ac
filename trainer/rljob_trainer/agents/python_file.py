"""Runs a user's agent in worker processes, over pipes, so that it cannot corrupt, block or end the driver."""

import asyncio
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.failures import AgentFailed, Kind
from rljob_trainer.agents.process import AgentProcess
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.respawning import Respawning
from rljob_trainer.rewards.worker_process import WorkerLost

MAX_WORKERS = 8
"""At most so many processes; each imports the file."""
AT_ONCE = 256
"""Trajectories of one process at a time."""


class WorkerAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self, spec: AgentSpec):
        kind, self._path, names = _program(spec)
        self.spec, self._field = spec, f"spec.rollout.agent.{kind}.path"
        start = partial(AgentProcess.start, (kind, self._path, json.dumps(names)), spec.timeout_seconds, spec.env)
        self._workers = [Respawning(start) for _ in range(min(os.cpu_count() or 1, MAX_WORKERS))]
        self._free: asyncio.Queue[Respawning[AgentProcess]] = asyncio.Queue()
        """Each process as often as it can take a trajectory."""
        self._endpoint = Endpoint()
        self.tools: list[dict[str, Any]] = []
        """JSON schemas of what the policy may call, once it has started."""

    async def start(self) -> None:
        """Raises ConfigurationError when the file is missing, cannot be imported, or lacks what the spec names."""
        self._require_file()
        await self._endpoint.start()
        for found in await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True):
            if isinstance(found, AgentProcess):
                self.tools = found.hello["tools"]
            else:
                fix = "correct the file; it is imported as a file of its own, with the image's packages"
                raise ConfigurationError(self._field, self._path, f"cannot be loaded: {found}", fix) from found
        for _ in range(AT_ONCE):
            for worker in self._workers:
                self._free.put_nowait(worker)

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)  # a volume that is slow is not on the agent's clock
        url = self._endpoint.open(session)
        try:
            reply = await self._reply(session, _values(session.prompt, row) | {"base_url": url})
        finally:
            self._endpoint.close(url)
        if "error" in reply:
            raise self._failed(reply["kind"], reply["error"])
        if (trajectory := reply["trajectory"]) is None:
            raise self._failed("none", "the function returned None")
        if (rollout := session.rollout(trajectory["tokens"])) is None:
            raise self._failed(
                "value", "returned a Trajectory without one answer of policy.generate behind its context"
            )
        return replace(rollout, reward=trajectory["reward"], metrics=trajectory["metrics"])

    async def _reply(self, session: Session, values: dict[str, Any]) -> dict[str, Any]:
        """A process that is lost is ended: the next trajectory gets a new one."""
        worker = await self._free.get()
        try:
            process = await worker.running()
            try:
                return await process.rollout(values, session)
            except WorkerLost:
                await worker.end(process)
                raise
        except WorkerLost as error:
            raise self._failed("timeout" if error.kind == "timeout" else "raised", str(error)) from error
        finally:
            self._free.put_nowait(worker)

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers), self._endpoint.stop())

    def _require_file(self) -> None:
        if not Path(self._path).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise ConfigurationError(self._field, self._path, "there is no such file in the trainer pod", fix)

    def _failed(self, kind: Kind, reason: str) -> AgentFailed:
        return AgentFailed(kind, self._field, self._path, reason)


def _program(spec: AgentSpec) -> tuple[str, str, list[str]]:
    """What the processes run: kind, file and functions."""
    if spec.tools:
        return "tools", spec.tools.path, spec.tools.functions
    assert spec.python is not None, "the spec was checked: exactly one kind of agent"
    return "python", spec.python.path, [spec.python.function]


def _values(prompt: Prompt, row: Any) -> dict[str, Any]:
    """What the function is called with."""
    fields = {name: getattr(prompt, name) for name in ("text", "answer", "data_source")}
    return {"prompt": fields | {"tokens": list(prompt.tokens)}, "row": dict(row)}
