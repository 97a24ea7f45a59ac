"""Which gateway owns the journals: the one that began last. A former one may still run, on a node that does not answer, and be asked by clients
there.

A gateway claims the directory before it reads the journals, and writes each anew, so that a former one's appends reach a file that nobody reads.
And it looks at the claim after each of its own appends, before anybody hears of that: what came before the loss of the claim is read by the next one.
"""

import os
import secrets
from pathlib import Path


class GatewaySuperseded(RuntimeError):
    """Another gateway owns the journals. This one must end, and acknowledge nothing."""


class Claim:
    """This process's claim on a directory."""

    def __init__(self, root: Path) -> None:
        """Claims it. Raises OSError."""
        self._file, self._name = root / "owner", secrets.token_hex(16)
        root.mkdir(parents=True, exist_ok=True)
        scratch = root / f".owner-{self._name}"
        with scratch.open("w") as file:
            file.write(self._name)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._file)

    def check(self) -> None:
        """Raises GatewaySuperseded."""
        if self._file.read_text() != self._name:
            raise GatewaySuperseded(f"another gateway has claimed {self._file.parent}")
