"""What an agent asks about its sandboxes (sandbox.py), and the driver's answers. Bytes are base64, since questions are lines of JSON."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from typing import Any

from rljob_trainer.agents.claims import Claims
from rljob_trainer.sandboxes.sandbox import ClaimedSandbox


async def claimed(claims: Claims, environment: str) -> int:
    return await claims.claim(environment)


async def asked(claims: Claims, number: int, method: str, arguments: dict[str, Any]) -> Any:
    """Where the agent gives up, its program would run on, and keep the next request waiting: that ends the sandbox."""
    try:
        return await METHODS[method](claims.of(number), **arguments)
    except asyncio.CancelledError:
        if method != "http":
            claims.end(number)
        raise


async def given_back(claims: Claims, number: int) -> None:
    await claims.give_back(number)


async def _run(sandbox: ClaimedSandbox, command: list[str], stdin: str, seconds: float, most: int) -> list[Any]:
    ended = await sandbox.run(command, seconds, b64decode(stdin), most)
    return [ended.code, ended.reason, _text(ended.output), _text(ended.errors)]


async def _write(sandbox: ClaimedSandbox, path: str, content: str) -> None:
    await sandbox.write(path, b64decode(content))


async def _read(sandbox: ClaimedSandbox, path: str) -> str:
    return _text(await sandbox.read(path))


async def _http(
    sandbox: ClaimedSandbox, method: str, port: int, path: str, body: str, headers: dict[str, str], seconds: float
) -> list[Any]:
    status, content = await sandbox.http(method, port, path, b64decode(body), headers, seconds)
    return [status, _text(content)]


def _text(content: bytes) -> str:
    return b64encode(content).decode()


METHODS: dict[str, Callable[..., Awaitable[Any]]] = {"run": _run, "write": _write, "read": _read, "http": _http}
QUESTIONS: dict[str, Callable[..., Awaitable[Any]]] = {"claim": claimed, "sandbox": asked, "give_back": given_back}
