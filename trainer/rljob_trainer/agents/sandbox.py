"""The agent's end of a sandbox that it has claimed: `async with policy.sandbox("python") as sandbox`."""

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rljob_trainer.sandboxes.sandbox import MOST_BYTES

MOST_ARGUMENTS, MOST_SECONDS = 512, 3600.0
LOWEST_PORT, HIGHEST_PORT = 1, 65535
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What became of a program."""

    code: int
    """Its exit code; below 0: the signal that ended it, such as -9."""
    stdout: str
    """What it has written, with U+FFFD for bytes that are no UTF-8."""
    stderr: str
    timed_out: bool
    """It was ended, since it took longer than `seconds`."""
    cut: bool
    """It was ended, since it had written more than `max_output` to one of both, which hold the beginning."""


class Sandbox:
    """One claim, inside `async with`. All methods raise SandboxError, and TypeError or ValueError for arguments of another kind."""

    def __init__(self, ask: Ask, environment: str):
        self._ask, self._environment = ask, environment
        self._number = -1

    async def __aenter__(self) -> Self:
        """Waits for a sandbox that is free, which for the first one does not count for spec.rollout.agent.timeoutSeconds."""
        self._number = await self._ask("claim", {"environment": self._environment})
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: Any, __: TracebackType | None) -> None:
        """Gives it back. All that is in it ends and is deleted."""
        await self._ask("give_back", {"number": self._number})

    async def exec(
        self, command: Sequence[str], *, stdin: str | bytes = b"", seconds: float = 60.0, max_output: int = 65536
    ) -> ProgramResult:
        """Run a program until it ends, in the sandbox's directory.

        Args:
            command: the program and its arguments, at most 512; no shell reads them. For a shell: ["sh", "-c", "..."]
            stdin: what it reads, at most 1 MiB
            seconds: after which it is ended, with its process group; at most 3600
            max_output: bytes of standard output, and of standard error, after which it is ended; at most 1 MiB
        """
        words = [str(word) for word in command]
        if isinstance(command, str | bytes) or not 1 <= len(words) <= MOST_ARGUMENTS:
            raise TypeError(f"command: a list of 1 to {MOST_ARGUMENTS} words, not {command!r:.100}")
        for word in words:
            _require_sayable("command", word)
        given: dict[str, Any] = {"command": words, "stdin": _bytes("stdin", stdin)}
        given |= {"seconds": _within_limits(seconds), "most": _within("max_output", max_output, 0, MOST_BYTES)}
        code, reason, output, errors = await self._do("run", given)
        return ProgramResult(code, _text(output), _text(errors), timed_out=reason == "timeout", cut=reason == "output")

    async def write(self, path: str, content: str | bytes) -> None:
        """Write a file of at most 1 MiB, which may be executed, and the directories that lead to it. A relative path begins in the sandbox's
        directory."""
        await self._do("write", {"path": _path(path), "content": _bytes("content", content)})

    async def read(self, path: str) -> bytes:
        """A regular file of at most 1 MiB."""
        return b64decode(await self._do("read", {"path": _path(path)}))

    async def http(
        self,
        method: str,
        port: int,
        path: str = "/",
        *,
        body: str | bytes = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = 60.0,
    ) -> tuple[int, bytes]:
        """Ask a server in the sandbox, which has to listen on all addresses (0.0.0.0). Status and body, of at most 1 MiB; redirections are not
        followed."""
        given = {"method": str(method), "port": _within("port", port, LOWEST_PORT, HIGHEST_PORT), "path": str(path)}
        given |= {"body": _bytes("body", body), "headers": {str(k): str(v) for k, v in (headers or {}).items()}}
        status, content = await self._do("http", given | {"seconds": _within_limits(seconds)})
        return status, b64decode(content)

    async def _do(self, method: str, arguments: dict[str, Any]) -> Any:
        return await self._ask("sandbox", {"number": self._number, "method": method, "arguments": arguments})


def _bytes(name: str, content: str | bytes) -> str:
    if not isinstance(content, str | bytes):
        raise TypeError(f"{name}: {content!r:.100} is neither a text nor bytes")
    given = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    if len(given) > MOST_BYTES:
        raise ValueError(f"{name}: has {len(given)} bytes; at most {MOST_BYTES} are sent")
    return b64encode(given).decode()


def _text(said: str) -> str:
    return b64decode(said).decode(errors="replace")


def _path(path: str) -> str:
    if not isinstance(path, str) or not path or len(path) > 4096:
        raise ValueError(f"path: {path!r:.100} is no path")
    _require_sayable("path", path)
    return path


def _require_sayable(name: str, word: str) -> None:
    """The kernel takes bytes without NUL. JSON of a tool call may hold half of a surrogate pair, which no bytes stand for."""
    try:
        word.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: {word!r:.100} holds a lone surrogate, which is no character") from error
    if "\0" in word:
        raise ValueError(f"{name}: {word!r:.100} holds the character NUL")


def _within_limits(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"seconds: {seconds!r:.100} is no number above 0 and up to {MOST_SECONDS:g}")
    return float(seconds)


def _within(name: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}: {value!r:.100} is no whole number from {least} to {most}")
    return value
