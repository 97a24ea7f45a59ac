"""Calls that a client makes again, since it has lost the answer with the connection: they have been carried out, and get the first answer.

The SDK gives each call a key of idempotency, and sends the same one with up to ten repetitions, which come within about a minute. What it asks again
after that has a new key. Requests of models and samples have numbers besides, by which they are known for ever, also to a next gateway.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

IDEMPOTENCY_KEY = "X-Idempotency-Key"
LONGEST_KEY = 256
"""Characters."""
MOST_CALLS = 4096
"""Of a client, whose answers are kept."""


@dataclass
class _AnsweredCall:
    carrying_out: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: dict[str, Any] | None = None
    """None: it was not carried out yet."""


class AnsweredCalls:
    """The last calls of each client that were carried out."""

    def __init__(self) -> None:
        self._calls = defaultdict[str, dict[str, _AnsweredCall]](dict)
        """By client, and by the name of the call; the oldest first."""

    async def once(
        self, client: str, request: web.Request, carry_out: Callable[[], Awaitable[web.Response | dict[str, Any]]]
    ) -> web.Response | dict[str, Any]:
        """The answer to a call, which is carried out if that has not been done. A call that was refused has not been carried out."""
        key = request.headers.get(IDEMPOTENCY_KEY, "")
        if not key or len(key) > LONGEST_KEY:
            return await carry_out()
        call = self._call(client, f"{request.method} {request.path} {key}")
        has_come = request.content.is_eof()  # nobody waits for a call whose body is on its way, perhaps for ever
        async with call.carrying_out if has_come else contextlib.nullcontext():
            if call.answer is None:
                answer = await carry_out()
                if isinstance(answer, web.Response):
                    return answer
                call.answer = answer
            return call.answer

    def _call(self, client: str, name: str) -> _AnsweredCall:
        calls = self._calls[client]
        call = calls.setdefault(name, _AnsweredCall())
        if len(calls) > MOST_CALLS:
            del calls[next(iter(calls))]
        return call
