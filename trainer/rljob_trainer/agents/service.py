"""The agent that lets the policy act in an environment that is an HTTP service (docs/environment.openapi.yaml). No code of
the user's runs here.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from rljob_api.spec.agent import AgentSpec, Environment
from rljob_trainer.agents.api import Policy, PolicyError, Turn
from rljob_trainer.agents.episode import Episode, Nonsense, Observation, observed, plain, played
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.rewards.http_service import Post, fill_in
from rljob_trainer.rewards.request import RewardFailed


class EnvironmentService(Protocol):
    """Where the episodes are played."""

    url: str

    @property
    def field(self) -> str:
        """Of the spec, which names `url`."""
        ...

    @property
    def at_once(self) -> int:
        """Episodes at a time."""
        ...

    async def start(self) -> None:
        """Raises ConfigurationError."""
        ...

    async def stop(self) -> None: ...

    async def play(self, session: Session, row: Mapping[str, Any]) -> Rollout | None:
        """One episode; None when it ends before the policy's first turn. Raises Nonsense and PolicyError, and RewardFailed for a service that does
        not answer."""
        ...


class ServiceAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    ready = True

    def __init__(self, spec: AgentSpec, service: EnvironmentService):
        self.spec, self._service, self.tools = spec, service, list[dict[str, Any]]()
        self._slots = asyncio.Semaphore(service.at_once)

    async def start(self) -> None:
        """Raises ConfigurationError for a variable in the headers that is not set."""
        await self._service.start()

    async def stop(self) -> None:
        await self._service.stop()

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)
        async with self._slots:
            try:
                async with session.own_time.limited():
                    return await self._played(session, row)
            except TimeoutError as error:
                raise self._failed("timeout", f"took longer than {self.spec.timeout_seconds:g} s of its own") from error
            except RewardFailed as error:
                raise self._failed(error.kind, error.reason) from error
            except (Nonsense, PolicyError) as error:
                raise self._failed("value", str(error)) from error

    async def _played(self, session: Session, row: Mapping[str, Any]) -> Rollout:
        rollout = await self._service.play(session, row)
        if rollout is None:
            raise self._failed("value", "ended before the policy's first turn")
        return rollout

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        return AgentFailed(kind, self._service.field, self._service.url, reason)


async def turn_by_turn(session: Session, episode: Episode) -> Rollout | None:
    """What an episode that answers every turn makes of a session. Raises as EnvironmentService.play."""
    trajectory = await played(Policy(session.answer), session.prompt.tokens, episode)
    rollout = session.rollout([trajectory.tokens], trajectory.rewards)
    return rollout and replace(rollout, metrics=trajectory.metrics)


FIELD = "spec.rollout.agent.environment"
AT_ONCE = 1024
CLOSING_SECONDS = 5.0


class HttpEnvironment:
    """Call `start` before the first episode and `stop` after the last."""

    field, at_once = f"{FIELD}.url", AT_ONCE

    def __init__(self, environment: Environment, seconds: float):
        """`seconds`: limit of one call."""
        self.url, self._environment, self._seconds = environment.url.rstrip("/"), environment, seconds
        self._posts: dict[str, Post] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises ConfigurationError for a variable in the headers that is not set."""
        headers = fill_in(f"{FIELD}.headers", self._environment.headers)
        retries = {"reset": self._environment.retries, "step": 0, "close": 0}
        for route, count in retries.items():
            post = Post(self.field, f"{self.url}/{route}", headers, count, self._seconds, AT_ONCE)
            self._posts[route] = post
            await post.open()

    async def stop(self) -> None:
        """Sessions that are being closed have CLOSING_SECONDS for it."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_SECONDS)
        await asyncio.gather(*(post.close() for post in self._posts.values()))

    async def play(self, session: Session, row: Mapping[str, Any]) -> Rollout | None:
        name = secrets.token_hex(16)
        begin = {"prompt": session.prompt.text, "row": plain(row)}
        try:
            return await turn_by_turn(session, _HttpSession(self._posts, {"session": name}, begin))
        finally:
            self._close(name)

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


class _HttpSession:
    """Its calls raise RewardFailed, too."""

    def __init__(self, posts: Mapping[str, Post], name: Mapping[str, str], begin: Mapping[str, Any]):
        self._posts, self._name, self._begin = posts, name, begin

    async def reset(self) -> Observation:
        return observed(await self._posts["reset"].ask({**self._name, **self._begin}), "reset")

    async def step(self, number: int, turn: Turn) -> Observation:
        act = {"turn": number, "text": turn.text, "truncated": turn.finish_reason == "length"}
        return observed(await self._posts["step"].ask({**self._name, **act}), "step")
