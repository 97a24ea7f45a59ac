"""One update as a worker of a server receives it: in a thread of its own, so the server generates meanwhile.

The worker takes buckets of all senders in turn, one at a time, and loads each while the next one is transferred. So it holds two buckets, however
many senders there are; and all workers of a server take them in the same order, as collective transfers require.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights import gloo, ipc, nccl
from rljob_trainer.wire.weights.bucket import Entry, digest, payload_size, total, unpack
from rljob_trainer.wire.weights.messages import COMPLETE, AbandonedError, Inbox
from rljob_trainer.wire.weights.protocol import Offer
from rljob_trainer.wire.weights.rendezvous import RemoteStore

WorkerEnd = gloo.WorkerEnd | nccl.WorkerEnd | ipc.WorkerEnd
NamedTensors = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Connection:
    """A sender, as a worker reaches it."""

    home: RemoteStore
    group: str
    """Name of the connection."""
    end: WorkerEnd


@dataclass(frozen=True, slots=True)
class Arriving:
    """A bucket that is in transfer, or not loaded yet."""

    inbox: Inbox
    entries: list[Entry]
    payload: Tensor


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """This process in its server."""

    worker: int
    workers: int
    device: torch.device


class Reception:
    """Use `start`, then `result`, which waits for the end. `abandon` ends it at any time."""

    def __init__(
        self,
        place: WorkerPlace,
        session: str,
        end_cls: type[WorkerEnd],
        check: Callable[[Iterable[Entry]], None],
        load: Callable[[NamedTensors], None],
    ) -> None:
        """`session`: the update. `check` refuses entries by an exception, before they are received; `load` takes verified tensors, views of a bucket
        that is reused."""
        self._place, self._session, self._end_cls = place, session, end_cls
        self._check, self._load = check, load
        self.sources: list[Connection] = []
        self._inboxes: list[Inbox] = []
        self._names: set[str] = set()
        self._digests: list[str] = []
        self._abandoned = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="weights")

    def start(self, offers: Sequence[Offer], known: Sequence[Connection | None]) -> None:
        """Join the senders, and receive what they send. `known`: connections to some of them that still exist."""
        self._offers, self._known = offers, known
        self._thread.start()

    def result(self, seconds: float) -> tuple[set[str], str]:
        """Wait for the last bucket; the names of all tensors, and their digest. Raises what ended the reception."""
        self._thread.join(seconds)
        if self._error:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError("not all buckets of this update have come")
        return self._names, total(self._digests)

    def abandon(self) -> None:
        """End the thread and leave all senders, whose connections may be broken."""
        self._abandoned.set()
        if self._thread.ident:
            self._thread.join()
        for source in self.sources:
            source.end.close()

    def _run(self) -> None:
        try:
            with torch.no_grad(), self._own_stream():
                self._join()
                self._receive()
        except Exception as error:
            self._error = error
            for inbox in self._inboxes:
                with suppress(RuntimeError):  # this sender may be gone
                    inbox.refuse(str(error) or repr(error))

    def _own_stream(self) -> AbstractContextManager[Any]:
        """On a GPU: a context in which this thread's work does not wait for what the server computes."""
        if self._place.device.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self._place.device)
        return torch.cuda.stream(torch.cuda.Stream())

    def _join(self) -> None:
        pairs = list(zip(self._offers, self._known, strict=True))
        homes = [known.home if known else RemoteStore(offer.address, offer.port) for offer, known in pairs]
        self._inboxes = [Inbox(home.store, self._session, self._place.worker) for home in homes]
        for home, (_, known) in zip(homes, pairs, strict=True):
            if not known:
                end = self._end_cls(home, self._session, self._place.worker, self._place.workers)
                known = Connection(home, self._session, end)
            self.sources.append(known)
            self._wait()

    def _wait(self) -> None:
        """Called while this worker waits for one sender: the others see that it lives."""
        if self._abandoned.is_set():
            raise AbandonedError("this update was abandoned")
        for inbox in self._inboxes:
            inbox.alive()

    def _receive(self) -> None:
        everyone, pending, ended = list(zip(self.sources, self._inboxes, strict=True)), None, ""
        while ended != COMPLETE:
            active = list(everyone)
            while active:
                for source, inbox in tuple(active):
                    pending, ended = self._turn(source, inbox, pending)
                    if ended:
                        active.remove((source, inbox))
        if pending:
            self._take(pending)
        for inbox in self._inboxes:
            inbox.acknowledge()

    def _turn(self, source: Connection, inbox: Inbox, pending: Arriving | None) -> tuple[Arriving | None, str]:
        """Handle the next message of one sender. Returns a bucket that has to be loaded, and, if the message was none, which.

        `pending`: the bucket before. It is loaded at once if this sender lets the worker wait, since its own sender waits for that.
        """
        if pending and not inbox.has_next:
            self._take(pending)
            pending = None
        message = inbox.next(self._wait)
        if isinstance(message, str):
            return pending, message
        bucket = self._begin(source, inbox, message)
        if pending:
            self._take(pending)
        source.end.wait()
        return bucket, ""

    def _begin(self, source: Connection, inbox: Inbox, message: dict[str, Any]) -> Arriving:
        entries = [Entry.from_json(e) for e in message["entries"]]
        self._check(entries)
        size = payload_size(e.size for e in entries)
        payload = torch.empty(size, dtype=torch.uint8, device=self._place.device)
        source.end.receive(payload, message["transport"])
        inbox.ready()
        return Arriving(inbox, entries, payload)

    def _take(self, bucket: Arriving) -> None:
        self._load(unpack(bucket.entries, bucket.payload))
        if bucket.payload.is_cuda:
            torch.cuda.current_stream().synchronize()
        self._names |= {entry.name for entry in bucket.entries}
        self._digests.append(digest(bucket.entries))
        bucket.inbox.acknowledge()
