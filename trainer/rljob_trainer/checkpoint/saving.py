"""Saving a checkpoint, on every rank: one at a time, written by threads while training continues, committed between two steps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rljob_api.callbacks import nothing
from rljob_trainer.checkpoint.manifest import ENGINE, Contents, Files, fingerprints
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.failure import PeerLost
from rljob_trainer.wire.collective import Ranks


class Checkpointable(Protocol):
    """What is saved: the part of Engine or CriticRole that is needed."""

    @property
    def layout(self) -> str: ...

    @property
    def heartbeat(self) -> Callable[[], None]: ...

    def save(self, directory: Path, alongside: bool) -> Writing: ...


class SaveFailed(RuntimeError):
    """A checkpoint could not be written. Earlier ones are intact."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint, and the time that it took."""

    step: int
    stall_seconds: float
    """How long the loop waited."""
    background_seconds: float
    """How long rank 0's threads wrote, also while the loop continued."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files that the ranks of one gang have written."""

    files: Files
    """By path below the parent of the gang's directory, without the metadata files that rank 0 writes at the end."""
    seconds: float
    """How long this rank wrote."""


class CheckpointPart:
    """The part of a checkpoint that the ranks of one gang write. Every method is collective: all ranks call it at the same point of their loop."""

    def __init__(self, engine: Checkpointable, ranks: Ranks):
        self._engine, self._ranks = engine, ranks
        self._writing: Writing | None = None
        self._step = 0

    @property
    def under_way(self) -> bool:
        return self._writing is not None

    @property
    def tally(self) -> int:
        """Bytes that this rank has written in the save under way."""
        return self._writing.tally.bytes if self._writing else 0

    def begin(self, step: int, directory: Path, alongside: bool) -> None:
        """Copy the state of `step`, and start to write it into a new directory. The previous save must be complete. `alongside`: training goes on."""
        assert self._writing is None, "one save at a time"
        self._step, self._writing = step, self._engine.save(directory, alongside)

    def complete(self, wait: bool) -> Written | None:
        """The files, if all ranks have written their parts; `wait`: once they have. None: not yet, or there is no save.

        Raises SaveFailed on a rank that could not write, PeerLost on the others; StandstillError.
        """
        writing = self._writing
        if writing is None:
            return None
        if wait:
            self._ranks.until(writing.wait, lambda: writing.tally.bytes, self._engine.heartbeat)
        elif not self._ranks.all(writing.done):
            return None
        self._writing = None
        self._raise_failures(writing)
        writing.finish()
        parts: list[Files] = self._ranks.gather(writing.files)
        files: Files = {name: (f[0], f[1]) for part in parts for name, f in part.items()}
        return Written(files, writing.seconds)

    def _raise_failures(self, writing: Writing) -> None:
        own = writing.error
        failed = [rank for rank, bad in enumerate(self._ranks.gather(own is not None)) if bad]
        if own:
            raise SaveFailed(f"rank {self._ranks.rank} {_failed(self._step)}: {own}") from own
        if failed:
            raise PeerLost(f"rank {failed[0]} {_failed(self._step)}")


class OtherWriters(Protocol):
    """Who writes parts of a checkpoint besides the trainer's ranks, which its rank 0 reaches through the driver: models that are trained on gangs of
    their own, and the driver itself."""

    def save_gangs(self, step: int, directory: Path, alongside: bool) -> None:
        """Have each begin to write its state into a directory of its role's name inside `directory`."""
        ...

    def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        """{role: layout and files}, once all have written; {}: not yet. Answered within about a second; without `wait` at once."""
        ...

    def buffer_saved(self, wait: bool) -> dict[str, Any]:
        """The `files` of the rollout buffer, once they are written; {}: not yet. Answered as `gangs_saved`."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    digest: str
    data: Mapping[str, Any]
    directory: Path
    stall_seconds: float


class Saver:
    """Saves checkpoints of the trainer. Every method is collective: all of its ranks call it at the same point of the loop."""

    def __init__(
        self,
        engine: Checkpointable,
        ranks: Ranks,
        store: Store | None,
        others: OtherWriters | None = None,
        has_gangs: bool = False,
    ):
        """`store`, `others`: on rank 0 only. `has_gangs`, on all ranks: whether models are trained on gangs of their own."""
        self._part, self._ranks, self._store = CheckpointPart(engine, ranks), ranks, store
        self._engine, self._writers, self._has_gangs = engine, others, has_gangs
        self._pending: _Pending | None = None
        self._written: Written | None = None

    def begin(
        self,
        step: int,
        digest: str,
        data: Mapping[str, Any],
        alongside: bool,
        further: Callable[[Path], None] = nothing,
    ) -> None:
        """Copy the state as it is now, and start to write it. The previous save must be complete.

        Args:
            digest, data: see Contents; on rank 0
            alongside: training goes on while it is written
            further: begins to add more files to the checkpoint's directory, on rank 0; complete once `OtherWriters.buffer_saved`
        """
        assert self._pending is None, "one save at a time"
        began = time.monotonic()
        directory = Path(self._ranks.broadcast(str(self._store.begin(step)) if self._store else None))
        if self._store:
            further(directory)
        engine = directory / ENGINE
        self._part.begin(step, engine, alongside)
        if self._writers and self._has_gangs:
            self._writers.save_gangs(step, engine, alongside)
        self._pending = _Pending(step, digest, data, directory, time.monotonic() - began)

    def complete(self, wait: bool) -> Saved | None:
        """Commit the save under way, if all ranks of all gangs have written their parts; `wait`: once they have. None: nothing was committed.

        Raises SaveFailed on a rank that could not write, PeerLost on the others; OSError, FencedOut on rank 0; StandstillError.
        """
        pending, began = self._pending, time.monotonic()
        if pending is None:
            return None
        try:
            gathered = self._gathered(pending.step, wait)
        except (SaveFailed, PeerLost, OSError):  # the trainer's ranks have stopped writing; others end with the attempt
            if self._store:
                self._store.abandon(pending.step)
            raise
        if gathered is None:
            return None
        written, others = gathered
        self._written = self._pending = None
        if self._store:
            self._commit(self._store, pending, written, others)
        stall = pending.stall_seconds + time.monotonic() - began
        return Saved(pending.step, stall, written.seconds)

    def _gathered(self, step: int, wait: bool) -> tuple[Written, dict[str, Any]] | None:
        """What the trainer's ranks and its driver have written, and what the other gangs have; None: not all have yet."""
        self._written = self._written or self._part.complete(wait)
        others = self._others(step, wait) if self._written else None
        buffer = self._buffer(wait) if others is not None else None
        if self._written is None or others is None or buffer is None:
            return None
        return replace(self._written, files=self._written.files | buffer), others

    def _commit(self, store: Store, pending: _Pending, written: Written, others: Mapping[str, Any]) -> None:
        try:
            store.commit(self._contents(pending, written, others))
        except OSError:
            store.abandon(pending.step)
            raise

    def _others(self, step: int, wait: bool) -> dict[str, Any] | None:
        """{role: layout and files} of all other gangs; None: not all have written yet."""
        while self._has_gangs:
            others = self._ranks.broadcast(self._writers.gangs_saved(step, wait) if self._writers else None)
            if others:
                return others
            if not wait:
                return None
        return {}

    def _buffer(self, wait: bool) -> Files | None:
        """The files of the rollout buffer; None: they are not written yet."""
        while True:
            saved = self._ranks.broadcast(self._writers.buffer_saved(wait) if self._writers else {"files": {}})
            if saved or not wait:
                return {name: (size, digest) for name, (size, digest) in saved["files"].items()} if saved else None

    def _contents(self, pending: _Pending, written: Written, others: Mapping[str, Any]) -> Contents:
        """Fingerprints of the few files that nobody has hashed (metadata) are computed here."""
        files = dict(written.files)
        for saved in others.values():
            files |= {f"{ENGINE}/{name}": (size, digest) for name, (size, digest) in saved["files"].items()}
        return Contents(
            step=pending.step,
            layout=self._engine.layout,
            digest=pending.digest,
            data=pending.data,
            files=files | fingerprints(pending.directory, known=files),
            roles={role: saved["layout"] for role, saved in others.items()},
        )


def _failed(step: int) -> str:
    return f"could not write its part of the checkpoint of step {step}"
