"""Where a service keeps what on the volume, what of it can go, and which gateway owns it: the one that the operator has named last.

Journals, and all that is made of them, name directories by their paths below the service's own: it may lie elsewhere the next time.

A former gateway may still run, on a node that does not answer, and be asked by clients there. Each naming has a number, which grows. A gateway
claims the directory, unless a higher number or another job has; then it gives the directory of the journals a name of its own, reads them, and
writes each anew: a former one's appends reach files that nobody reads, and what it renames or deletes is not there. And it looks at the claim after
each of its own appends, before anybody hears of that, and before it deletes what ranks wrote: what came before the loss of the claim is read by the
next one.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rljob_trainer.gateway.journal import JournalDamaged, sync_directory

SIZE = 512
"""Bytes of the file, always: it can be written on a full volume."""
STATES, SNAPSHOTS, CHECKPOINTS = "states", "snapshots", "checkpoints"
log = logging.getLogger(__name__)


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
        owner = self._owner()
        if owner:
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


@dataclass(frozen=True)
class ServiceFiles:
    """Of one service."""

    root: Path
    life: str
    """Of the gateway's process: its journals have a directory of their own."""

    @property
    def names(self) -> Path:
        """The journal of sessions, and of what has a name."""
        return self._journals / "service.log"

    @property
    def models(self) -> Path:
        """The directory of the models' journals."""
        return self._journals / "models"

    def journal(self, model: str) -> Path:
        return self.models / f"{plain(model)}.log"

    @property
    def _journals(self) -> Path:
        return self.root / f"journals-{self.life}"

    def take_journals(self, check: Callable[[], None]) -> None:
        """Rename the directory of the last life: whatever that renames or deletes by a path is not there any more. Raises OSError. `check`: raises if
        it is another one's turn."""
        earlier = list(self.root.glob("journals-*"))
        if len(earlier) > 1:
            raise JournalDamaged(
                f"{self.root} has several directories with journals: keep the one that counts, of {', '.join(map(str, earlier))}"
            )
        check()
        if earlier:
            earlier[0].rename(self._journals)
        else:
            self._journals.mkdir()
        sync_directory(self.root)

    def new(self, model: str, seq: int, kind: str) -> str:
        """A directory that nothing has been written to: after a crash a request may be executed again."""
        return f"{kind}/{plain(model)}/{seq}-{secrets.token_hex(4)}"

    def path(self, directory: str) -> str:
        """Where a directory is on this machine."""
        return str(self.root / directory)

    def directory(self, path: str) -> str:
        """The inverse of `path`; empty for what is not of this service."""
        return str(Path(path).relative_to(self.root)) if Path(path).is_relative_to(self.root) else ""

    def remove(self, directory: str) -> None:
        """Delete a directory that nobody reads any more. Empty: none."""
        if directory:
            shutil.rmtree(self.root / directory, ignore_errors=True)

    def collect(self, used: Collection[str], check: Callable[[], None]) -> None:
        """Delete all directories of models but these: what a crash has left half-written, or without a name. Nobody may be writing meanwhile.
        `check` is called once it is clear what goes, and raises if the directory has another owner, whose ranks may have written some of it."""
        kinds = [self.root / kind for kind in (STATES, SNAPSHOTS, CHECKPOINTS)]
        unused = [path for kind in kinds for path in kind.glob("*/*") if str(path.relative_to(self.root)) not in used]
        check()
        for path in unused:
            log.info("%s: nothing refers to it", path)
            shutil.rmtree(path, ignore_errors=True)
        for model in (path for kind in kinds for path in kind.glob("*")):
            with contextlib.suppress(OSError):
                model.rmdir()  # if it is empty


def plain(model: str) -> str:
    """A model's name as the name of a file."""
    return model.replace(":", "-")
