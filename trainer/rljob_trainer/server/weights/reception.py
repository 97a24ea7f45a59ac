"""One update as a worker of a server receives it: in a thread of its own, so the server generates meanwhile.

The worker takes buckets of all senders in turn, one at a time, and loads each while the next one is transferred (loading.py). So it holds two
buckets, however many senders there are; and all workers of all servers take those that concern them in the same order, as transfers through several
of them require.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from rljob_trainer.server.weights.loading import Arrived, BucketLoader, NamedTensors, on_stream, stream_of
from rljob_trainer.server.weights.source import Connection, UpdateSource, WorkerEnd, WorkerPlace
from rljob_trainer.wire.weights.bucket import Entry, payload_size, total
from rljob_trainer.wire.weights.messages import COMPLETE, TURN_OVER, AbandonedError
from rljob_trainer.wire.weights.polling import now_and_then
from rljob_trainer.wire.weights.protocol import ALIVE_SECONDS, Offer
from rljob_trainer.wire.weights.rendezvous import RemoteStore


class SenderLostError(RuntimeError):
    """A sender cannot be reached, so its part of the policy will not come."""


class Reception:
    """Use `start`, then `result`, which waits for the end. `abandon` ends it at any time."""

    def __init__(
        self,
        place: WorkerPlace,
        update: str,
        end_cls: type[WorkerEnd],
        check: Callable[[Iterable[Entry]], None],
        load: Callable[[NamedTensors], None],
    ) -> None:
        """`update`: its name at all senders. `check` refuses entries by an exception, before they are received; `load` takes verified tensors, views
        of a bucket that is not kept."""
        self._place, self._update, self._end_cls = place, update, end_cls
        self._check = check
        self._loader = BucketLoader(place.device, load, self._wait)
        self._sources: list[UpdateSource] = []
        self._abandoned = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="weights")
        self._show = now_and_then(ALIVE_SECONDS, self._shown)

    def start(self, offers: Sequence[Offer], kept: Mapping[Offer, Connection]) -> None:
        """Receive what these senders send. `kept`: connections to some of them that still exist."""
        self._offers, self._kept = offers, dict(kept)
        self._thread.start()

    def result(self, seconds: float) -> tuple[set[str], str]:
        """Wait for the last bucket; the names of all tensors, and their digest. Raises what ended the reception."""
        self._thread.join(seconds)
        if self._error:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError("not all buckets of this update have come")
        return self._loader.names, total(self._loader.digests)

    @property
    def connections(self) -> dict[Offer, Connection]:
        """To all senders of a complete update."""
        return {o: s.connection() for o, s in zip(self._offers, self._sources, strict=True)}

    def abandon(self) -> None:
        """End the thread and leave all senders, whose connections may be broken."""
        self._abandoned.set()
        if self._thread.ident:
            self._thread.join()
        self._leave()

    def _run(self) -> None:
        try:
            with on_stream(stream_of(self._place.device)):
                self._find()
                self._receive()
        except Exception as error:
            self._error = error
            for source in self._sources:
                with suppress(OSError):  # this sender may be gone
                    source.inbox.refuse(str(error) or repr(error))
            self._loader.close()
            self._leave()

    def _leave(self) -> None:
        """All senders, and what is kept of them."""
        for source in self._sources:
            source.close()
        for connection in self._kept.values():
            connection.close()
        self._kept = {}

    def _find(self) -> None:
        """Connect to all senders. Raises SenderLostError when one cannot be reached: after the others are, which will hear of it.

        To all at the same time: however many cannot be reached, the others hear of it before they take this worker for silent.
        """
        with ThreadPoolExecutor(len(self._offers)) as pool:
            connections = list(pool.map(self._connected, self._offers))
        reached = [connection for connection in connections if not isinstance(connection, SenderLostError)]
        self._sources = [UpdateSource(self._place, self._end_cls, one, self._update, self._wait) for one in reached]
        self._wait()
        for connection in connections:
            if isinstance(connection, SenderLostError):
                raise connection

    def _connected(self, offer: Offer) -> Connection | RemoteStore | SenderLostError:
        try:
            return self._kept.pop(offer, None) or RemoteStore(offer)
        except OSError as error:
            return SenderLostError(f"the sender at {offer.address} cannot be reached: {error}")

    def _wait(self) -> None:
        """Called while this worker waits: all senders see that it lives, unless it loads and has come no further."""
        if self._abandoned.is_set():
            raise AbandonedError("this update was abandoned")
        self._show()

    def _shown(self) -> bool:
        if self._loader.lives:
            for source in self._sources:
                source.inbox.alive()
        return True

    def _receive(self) -> None:
        ended = ""
        while ended != COMPLETE:
            active = list(self._sources)
            while active:
                for source in tuple(active):
                    ended = self._turn(source)
                    if ended != TURN_OVER:
                        active.remove(source)
        self._loader.wait()
        self._loader.close()
        for source in self._sources:
            source.inbox.done()

    def _turn(self, source: UpdateSource) -> str:
        """Do what one sender says until its turn is over. Returns by which message."""
        for message in source.turn():
            if isinstance(message, str):
                return message
            if "members" in message:
                source.join(message)
            else:
                self._receive_bucket(source, message)
        raise AssertionError("a turn ends with a message that says so")

    def _receive_bucket(self, source: UpdateSource, message: dict[str, Any]) -> None:
        entries = [Entry.from_json(e) for e in message["entries"]]
        self._check(entries)
        size = payload_size(e.size for e in entries)
        payload = torch.empty(size, dtype=torch.uint8, device=self._place.device)
        if source.receive(message, payload):
            self._loader.add(Arrived(entries, payload))
