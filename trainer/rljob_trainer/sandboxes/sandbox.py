"""What a sandbox can do, wherever it is. Imports nothing large: agents' processes import it, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

MOST_BYTES = 2**20
"""Of a file, of a program's input, of what it writes to standard output and to standard error each, and of the body of an HTTP answer."""


class SandboxError(Exception):
    """It cannot do that; or, with what it says, it has ended."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """What became of a program."""

    code: int
    """Its exit code; below 0: the signal that ended it."""
    reason: Literal["", "timeout", "output"]
    """Why it was ended: its time was over, or it has said more than it may. Empty: it was not."""
    output: bytes
    """What it has written to standard output, up to the limit."""
    errors: bytes
    """The same of standard error."""


class ClaimedSandbox(Protocol):
    """One claim. All methods raise SandboxError. Requests are carried out one after another."""

    async def run(self, command: Sequence[str], seconds: float, stdin: bytes, most: int) -> EndedProgram:
        """Run a program, without a shell, in the sandbox's directory. What it leaves in the background still runs. `most`: bytes of each output."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Write a file, and the directories that lead to it. A relative path begins in the sandbox's directory."""
        ...

    async def read(self, path: str) -> bytes: ...

    async def http(
        self, method: str, port: int, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        """Ask a server that a program has started, and that listens on all addresses. Status and body."""
        ...

    async def close(self) -> None:
        """Give it back: everything in it ends."""
        ...
