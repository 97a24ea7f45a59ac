"""The agent that lets the policy act in an environment, which is an HTTP service (docs/environment.openapi.yaml). No code of the user's runs here."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat, StringConstraints, ValidationError, model_validator

from rljob_api.metrics import OWN_NAME
from rljob_api.spec.roles import AgentSpec, Environment
from rljob_trainer.agents.api import Policy, PolicyError
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.rewards.http_service import Post, fill_in
from rljob_trainer.rewards.request import RewardFailed

FIELD = "spec.rollout.agent.environment"
AT_ONCE = 1024
"""Trajectories at a time."""
CLOSING_SECONDS = 5.0
MetricName = Annotated[str, StringConstraints(pattern=f"^{OWN_NAME.pattern}$")]


class Observation(BaseModel):
    """What the service answers to `reset` and `step`."""

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    """Tokenised as it is, behind the context."""
    messages: list[dict[str, Any]] = []
    """Written by the chat template, behind the policy's turn."""
    reward: FiniteFloat = 0.0
    done: bool = False
    metrics: dict[MetricName, FiniteFloat] = {}

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.text and self.messages:
            raise ValueError("text and messages exclude each other")
        return self


class EnvironmentAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self, spec: AgentSpec, environment: Environment):
        self.spec, self._environment, self.tools = spec, environment, list[dict[str, Any]]()
        self._url = environment.url.rstrip("/")
        self._posts: dict[str, Post] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises ConfigurationError for a variable in the headers that is not set."""
        headers = fill_in(f"{FIELD}.headers", self._environment.headers)
        retries = {"reset": self._environment.retries, "step": 0, "close": 0}
        for route, count in retries.items():
            post = Post(f"{FIELD}.url", f"{self._url}/{route}", headers, count, self.spec.timeout_seconds, AT_ONCE)
            self._posts[route] = post
            await post.open()

    async def stop(self) -> None:
        """Sessions that are being closed have CLOSING_SECONDS for it."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_SECONDS)
        await asyncio.gather(*(post.close() for post in self._posts.values()))

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)
        async with self._slots:
            name = secrets.token_hex(16)
            try:
                async with session.own_time.limited():
                    return await self._play(session, name, row)
            except TimeoutError as error:
                raise self._failed("timeout", f"took longer than {self.spec.timeout_seconds:g} s of its own") from error
            except RewardFailed as error:
                raise self._failed(error.kind, error.reason) from error
            except PolicyError as error:
                raise self._failed("value", str(error)) from error
            finally:
                self._close(name)

    async def _play(self, session: Session, name: str, row: Mapping[str, Any]) -> Rollout:
        policy, context, seen = Policy(session.answer), list(session.prompt.tokens), list[Observation]()
        begun = await self._observed("reset", {"session": name, "prompt": session.prompt.text, "row": plain(row)})
        context += await policy.encode(begun.text) if begun.text else []
        while turn := await policy.generate(context):
            context = turn.whole
            act = {"session": name, "turn": len(seen), "text": turn.text, "truncated": turn.finish_reason == "length"}
            seen.append(await self._observed("step", act))
            if seen[-1].done:
                break
            context += await _said(policy, context, seen[-1])
        rollout = session.rollout([context], [o.reward for o in seen])
        if rollout is None:
            raise self._failed("value", "ended before the policy's first turn")
        metrics = {key: value for observation in seen for key, value in observation.metrics.items()}
        return replace(rollout, metrics=metrics)

    async def _observed(self, route: str, body: dict[str, Any]) -> Observation:
        """Raises RewardFailed."""
        answer = await self._posts[route].ask(body)
        try:
            return Observation.model_validate(answer)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the answer"
            raise self._posts[route].failed("value", f"answered to {route}: {place}: {first['msg']}") from error

    def _close(self, name: str) -> None:
        """Not waited for. A session that is never closed is the service's to forget."""
        task = asyncio.create_task(self._closed(name))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, name: str) -> None:
        try:
            await self._posts["close"].ask({"session": name})
        except RewardFailed:
            return

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        return AgentFailed(kind, f"{FIELD}.url", self._url, reason)


async def _said(policy: Policy, context: list[int], observation: Observation) -> list[int]:
    if observation.messages:
        return await policy.reply(context, observation.messages)
    return await policy.encode(observation.text) if observation.text else []


def plain(value: Any) -> Any:
    """What JSON can say of a row: bytes are left out, also those of images within it; everything else that it does not know becomes a text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items() if not isinstance(inner, bytes)}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value if not isinstance(inner, bytes)]
    return value if isinstance(value, (str, int, float, type(None))) else str(value)
