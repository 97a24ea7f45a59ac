"""Checkpoints in the making, on every rank: at most one at a time, written while training continues, committed between steps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rljob_trainer.checkpoint.manifest import Contents, Files, engine_directory, fingerprints
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.collective import Ranks
from rljob_trainer.failure import PeerLost


class Checkpointable(Protocol):
    """The part of the training engine that is needed."""

    @property
    def layout(self) -> str: ...

    @property
    def heartbeat(self) -> Callable[[], None]: ...

    def save(self, directory: Path, reshardable: bool) -> Writing: ...


class SaveFailed(RuntimeError):
    """A checkpoint could not be written. The one before it is whole."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was committed, and what it cost."""

    step: int
    stall_seconds: float
    """For which the loop waited."""
    background_seconds: float
    """In which rank 0 wrote while the loop continued."""


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    reshardable: bool
    digest: str
    data: Mapping[str, Any]
    directory: Path
    writing: Writing
    stall_seconds: float


class Saver:
    """Every method is collective: all ranks call it, at the same point of the loop."""

    def __init__(self, engine: Checkpointable, ranks: Ranks, store: Store | None):
        """`store`: on rank 0 only."""
        self._engine, self._ranks, self._store = engine, ranks, store
        self._pending: _Pending | None = None

    def begin(
        self,
        step: int,
        digest: str,
        data: Mapping[str, Any],
        reshardable: bool,
        further: Callable[[Path], None] = lambda directory: None,
    ) -> None:
        """Copy the state as it is now and start to write it. `digest` and `data` are rank 0's, see Contents. Settle the save before first.

        `further` puts more files into the checkpoint's directory, on rank 0.
        """
        assert self._pending is None, "one save at a time"
        began = time.monotonic()
        directory = Path(self._ranks.broadcast(str(self._store.begin(step)) if self._store else None))
        if self._store:
            further(directory)
        writing = self._engine.save(directory / engine_directory(reshardable), reshardable)
        stall = time.monotonic() - began
        self._pending = _Pending(step, reshardable, digest, data, directory, writing, stall)

    def settle(self, wait: bool) -> Saved | None:
        """Commit the save under way if every rank has written its part, or once it has. None when nothing was committed.

        Raises SaveFailed on a rank that could not write, PeerLost on the others; StandstillError.
        """
        pending, began = self._pending, time.monotonic()
        if pending is None:
            return None
        if wait:
            self._ranks.until(pending.writing.wait, lambda: pending.writing.tally.bytes, self._engine.heartbeat)
        elif not self._ranks.all(pending.writing.done):
            return None
        self._pending = None
        self._raise_failures(pending)
        pending.writing.finish()
        files = self._ranks.gather(pending.writing.files)
        if self._store:
            self._store.commit(self._contents(pending, files))
        stall = pending.stall_seconds + time.monotonic() - began
        return Saved(pending.step, stall, pending.writing.seconds)

    def _contents(self, pending: _Pending, parts: list[Files]) -> Contents:
        """Each rank has read its own files again; the few that join them are read here."""
        files: Files = {name: (f[0], f[1]) for part in parts for name, f in part.items()}
        return Contents(
            step=pending.step,
            layout=self._engine.layout,
            reshardable=pending.reshardable,
            digest=pending.digest,
            data=pending.data,
            files=files | fingerprints(pending.directory, known=files),
        )

    def _raise_failures(self, pending: _Pending) -> None:
        own = pending.writing.error
        failed = [rank for rank, bad in enumerate(self._ranks.gather(own is not None)) if bad]
        if own:
            self._raise(pending.step, own)
        if failed:
            raise PeerLost(f"rank {failed[0]} could not write its part of the checkpoint of step {pending.step}")

    def _raise(self, step: int, error: Exception) -> NoReturn:
        message = f"rank {self._ranks.rank} could not write its part of the checkpoint of step {step}: {_root(error)}"
        raise SaveFailed(message) from error


def _root(error: BaseException) -> BaseException:
    """What was raised first: torch's archive writer, closed after a failed write, complains of a wrong position."""
    while before := error.__cause__ or error.__context__:
        error = before
    return error
