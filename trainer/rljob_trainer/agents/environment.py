"""Environments as HTTP services (docs/environment.openapi.yaml)."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rljob_api.spec.agent import Environment
from rljob_trainer.agents.api import Turn
from rljob_trainer.agents.episode import Episode, Observation, observed, plain
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.rewards.http_service import Post, fill_in
from rljob_trainer.rewards.request import RewardFailed

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

    @asynccontextmanager
    async def episode(self, prompt: Prompt, row: Mapping[str, Any]) -> AsyncIterator[Episode]:
        name = secrets.token_hex(16)
        try:
            yield _HttpSession(self._posts, {"session": name}, {"prompt": prompt.text, "row": plain(row)})
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
