"""The agent that lets the policy act in an environment that is a service. No code of the user's runs here."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.api import Policy, PolicyError
from rljob_trainer.agents.episode import Episode, Nonsense, played
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.data.prompts import Prompt
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

    def episode(self, prompt: Prompt, row: Mapping[str, Any]) -> AbstractAsyncContextManager[Episode]:
        """One that ends with the context. It raises RewardFailed for a service that does not answer."""
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
        async with self._service.episode(session.prompt, row) as episode:
            found = await played(Policy(session.answer), session.prompt.tokens, episode)
        rollout = session.rollout([found.tokens], found.rewards)
        if rollout is None:
            raise self._failed("value", "ended before the policy's first turn")
        return replace(rollout, metrics=found.metrics)

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        return AgentFailed(kind, self._service.field, self._service.url, reason)
