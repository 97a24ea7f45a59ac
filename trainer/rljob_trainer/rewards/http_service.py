"""Reward services over HTTP: one request, with a time limit, retried when that can help. Headers never appear in messages."""

import asyncio
import contextlib
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import aiohttp

from rljob_api import names
from rljob_api.spec.model import HttpReward
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardFailureKind, RewardRequest

AT_ONCE = 64
"""Concurrent calls. The time limit of a call starts when it is sent."""
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 2.0
LARGEST_ANSWER = 2**25
"""Bytes. The longest that is meant to come is a number for each of a million tokens."""
SHOWN = 300
"""At most so many characters of an answer are quoted in a message."""
VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class TransientError(Exception):
    """A retry may help."""


class UnreachableError(TransientError):
    """Nobody answered."""


class UnauthorizedError(TransientError):
    """The server does not take the token that it was shown (401)."""


def without_headers(text: str, headers: Mapping[str, str]) -> str:
    """The text with nothing that a header holds, which may be a key."""
    for value in filter(None, headers.values()):
        text = text.replace(value, "***")
    return text


class Service(Protocol):
    """Who says what is wrong with a call."""

    def failed(self, kind: RewardFailureKind, reason: str) -> RewardFailed: ...


class Post:
    """`seconds` limits one call with all its retries. Call `open` before the first and `close` after the last."""

    def __init__(
        self, field: str, url: str, headers: Mapping[str, str], retries: int, seconds: float, at_once: int = AT_ONCE
    ):
        self._field, self._url, self._headers, self._retries, self._seconds = field, url, headers, retries, seconds
        self._slots = asyncio.Semaphore(at_once)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # A kept connection that the server closes as we reuse it would look like a lost service.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        limits = aiohttp.ClientTimeout(total=None)  # ours bounds the call; the client's own is five minutes
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=limits)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, body: dict[str, Any]) -> Any:
        """The service's answer, parsed. Raises RewardFailed."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._ask(body)
            except TimeoutError as error:
                raise self.failed("timeout", f"took longer than {self._seconds:g} s") from error

    def failed(self, kind: RewardFailureKind, reason: str) -> RewardFailed:
        return RewardFailed(kind, self._field, self._url, without_headers(reason, self._headers))

    async def _ask(self, body: dict[str, Any]) -> Any:
        for repetition in range(self._retries + 1):
            try:
                return await self.once(self._url, body)
            except TransientError as error:
                if repetition == self._retries:
                    raise self.failed("service", f"{error}, asked {repetition + 1} times") from error
                await asyncio.sleep(min(FIRST_WAIT_SECONDS * 2**repetition, LONGEST_WAIT_SECONDS))
        raise AssertionError("the last repetition returns or raises")

    async def once(self, url: str, body: dict[str, Any], transient: Collection[int] = ()) -> Any:
        """The answer from one address, without retries and limits. Raises TransientError, of further statuses for `transient`, and RewardFailed."""
        assert self._session is not None, "open comes first"
        try:
            # A redirect would carry the headers to somebody whom the spec does not name.
            async with self._session.post(url, json=body, allow_redirects=False) as response:
                answer = await _beginning(response)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        text = answer.decode(errors="replace")
        if len(answer) > LARGEST_ANSWER and response.status == 200:
            raise self.failed("value", f"answered more than {LARGEST_ANSWER} bytes, which is the limit: {text[:SHOWN]}")
        if response.status == 200:
            return self._parsed(text)
        said = f"answered status {response.status}: {text[:SHOWN]}"
        if response.status == 401 and response.status in transient:
            raise UnauthorizedError(said)
        if response.status == 429 or response.status >= 500 or response.status in transient:
            raise TransientError(said)
        raise self.failed("service", said)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.failed("value", f"answered {text[:SHOWN]!r}, which is not JSON") from error


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The whole answer, unless it is more than LARGEST_ANSWER bytes: then what has come once it is."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST_ANSWER:
            break
    return bytes(body)


def finite(service: Service, value: Any, answer: Any) -> Reward:
    """The reward that an answer holds. Raises RewardFailed."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may be beyond every float
            number = float(value)
            if math.isfinite(number):
                return Reward(number)
    raise service.failed(
        "value", f"answered {str(answer)[:SHOWN]}, which does not hold one finite number as the reward"
    )


def fill_in(field: str, headers: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` in header values replaced from the environment, which for rewards does not have the token of the rollout servers.

    Raises ConfigurationError for a variable that is not set, or holds what no header may.
    """

    def value(header: str, name: str) -> str:
        if name in os.environ and name != names.ENV_ROLLOUT_TOKEN:
            return printable(header, name, os.environ[name])
        fix = "set it in spec.trainer.template.env or spec.env, for example with valueFrom a Secret"
        raise ConfigurationError(f"{field}.{header}", f"${name}", "the trainer has no such environment variable", fix)

    def printable(header: str, name: str, text: str) -> str:
        if not CONTROL.search(text):
            return text
        rule = "its value has a line end or another control character, which no header may hold"
        fix = "write the Secret without a line end, for example with `printf` in place of `echo`"
        raise ConfigurationError(f"{field}.{header}", f"${name}", rule, fix)

    def filled(header: str, text: str) -> str:
        def of_variable(variable: re.Match[str]) -> str:
            return value(header, variable[1])

        return VARIABLE.sub(of_variable, text)

    return {header: filled(header, text) for header, text in headers.items()}


class HttpService:
    """POST `{"prompt", "response", "answer", "data_source"}`, answered with `{"reward": number}`."""

    def __init__(self, field: str, spec: HttpReward, seconds: float):
        self._field, self._spec, self._seconds = field, spec, seconds
        self._post: Post | None = None

    async def start(self) -> None:
        """Raises ConfigurationError when a header names a variable that is not set."""
        headers = fill_in(f"{self._field}.headers", self._spec.headers)
        self._post = Post(f"{self._field}.url", self._spec.url, headers, self._spec.retries, self._seconds)
        await self._post.open()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed."""
        assert self._post is not None, "start comes first"
        answer = await self._post.ask(
            {
                "prompt": request.prompt,
                "response": request.response,
                "answer": request.answer,
                "data_source": request.data_source,
            }
        )
        return finite(self._post, answer.get("reward") if isinstance(answer, dict) else None, answer)

    async def stop(self) -> None:
        if self._post is not None:
            await self._post.close()
