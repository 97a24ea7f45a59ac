"""Which gateway owns the journals: the one that the operator has named last. A former one may still run, on a node that does not answer, and be asked
by clients there.

Each naming has a number, which grows. A gateway claims the directory, unless a higher number or another job has; then it gives the directory of the
journals a name of its own, reads them, and writes each anew: a former one's appends reach files that nobody reads, and what it renames or deletes is
not there. And it looks at the claim after each of its own appends, before anybody hears of that, and before it deletes what ranks wrote: what came
before the loss of the claim is read by the next one.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SIZE = 512
"""Bytes of the file, always: it can be written on a full volume."""


class GatewaySuperseded(RuntimeError):
    """Another gateway owns the journals. This one must end, and acknowledge nothing."""


@dataclass(frozen=True)
class _Owner:
    job: str
    number: int
    name: str
    """Of the process; empty: it has ended properly."""


class Claim:
    """This process's claim on a directory."""

    def __init__(self, root: Path, job: str = "", number: int = 0) -> None:
        """Claims it. Raises OSError; GatewaySuperseded when another gateway has to have it.

        Args:
            job: UID of the job; empty: it runs on one machine alone
            number: of the pod's naming as the gateway, by the operator
        """
        self._file, self._mine = root / "owner", _Owner(job, number, secrets.token_hex(16))
        root.mkdir(parents=True, exist_ok=True)
        if owner := self._owner():
            self._give_way(owner)
        self._write(self._mine)

    @property
    def name(self) -> str:
        """Of this process: no other has it."""
        return self._mine.name

    def check(self) -> None:
        """Raises GatewaySuperseded."""
        if self._owner() != self._mine:
            raise GatewaySuperseded(f"another gateway has claimed {self._file.parent}")

    def release(self) -> None:
        """The process ends, and another job may have the directory. Raises OSError."""
        if self._owner() == self._mine:
            self._write(replace(self._mine, name=""))

    def _give_way(self, owner: _Owner) -> None:
        """Raises GatewaySuperseded."""
        root, mine = self._file.parent, self._mine
        if owner.job == mine.job and owner.number > mine.number:
            raise GatewaySuperseded(
                f"{root} is claimed by gateway {owner.number} of this job, and this is {mine.number}"
            )
        if owner.job != mine.job and owner.name:
            whose = f"the job with UID {owner.job}" if owner.job else "a run on one machine"
            raise GatewaySuperseded(
                f"{root} belongs to the gateway of {whose}: choose another spec.checkpoint.path; or, if that gateway is gone for ever and did not "
                f"end properly, delete the file {self._file}"
            )

    def _owner(self) -> _Owner | None:
        """None: nobody, or a crash while the first one wrote."""
        try:
            return _Owner(**json.loads(self._file.read_bytes()))
        except (FileNotFoundError, ValueError):
            return None

    def _write(self, owner: _Owner) -> None:
        content = json.dumps(asdict(owner)).encode().ljust(SIZE)
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, content, 0)
            os.fsync(file)
        finally:
            os.close(file)
