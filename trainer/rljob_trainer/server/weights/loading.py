"""Loads the buckets that a worker has received, in a thread of its own: the worker receives the next one meanwhile, and other workers load theirs.

Loaders of vLLM take most of an update's time where a model has many tensors. A sender says one thing after another, so a worker that loaded before it
answers would have all others wait for it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.server.weights.partial_tensor import PartialTensor
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Entry, digest, unpack
from rljob_trainer.wire.weights.messages import AbandonedError

NamedTensors = Iterable[tuple[str, Tensor]]
POLL_SECONDS = 0.2
GRACE_SECONDS = 4 * protocol.ALIVE_SECONDS
"""A worker whose loader hangs is silent before it is late, so that senders name that as the cause."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A bucket that is not loaded yet. Its bytes are there on all CUDA streams."""

    entries: list[Entry]
    payload: Tensor


class BucketLoader:
    """Holds one bucket at most, which it loads. Use `add`, then `wait`; `close` at any time."""

    def __init__(self, device: torch.device, load: Callable[[NamedTensors], None], waiting: Callable[[], None]) -> None:
        """`load` takes verified tensors, views of a bucket that is not kept. `waiting` is called now and then while a bucket is awaited, in the
        thread that waits, and may raise."""
        self._load, self._waiting = load, waiting
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(1, "weights-load")
        self._stream = stream_of(device)
        self._under_way: Future[None] | None = None
        self._late = 0.0
        """By when it has to be loaded."""
        self._begun, self._seen = 0, 0
        self.names: set[str] = set()
        """Of all tensors that are loaded."""
        self.digests: list[str] = []
        """Of all buckets that are loaded."""

    def add(self, bucket: Arrived) -> None:
        """Begin to load a bucket, once the one before is loaded. Raises what `wait` raises."""
        self.wait()
        self._late = time.monotonic() + protocol.transfer_seconds(bucket.payload.numel()) + GRACE_SECONDS
        self._under_way = self._pool.submit(self._take, bucket)

    def wait(self) -> None:
        """Wait until everything is loaded. Raises CorruptBucketError, what `load` and `waiting` raise, and RuntimeError when loading takes longer
        than a transfer may: others wait meanwhile."""
        if running := self._under_way:
            while not wait([running], POLL_SECONDS).done:
                self._waiting()
                if time.monotonic() > self._late:
                    raise RuntimeError("this worker took too long to load a bucket")
            self._under_way = None
            running.result()

    @property
    def lives(self) -> bool:
        """Whether it has begun with a tensor since this was asked last, or has nothing to load."""
        begun, before = self._begun, self._seen
        self._seen = begun
        return begun > before or self._under_way is None or self._under_way.done()

    def close(self) -> None:
        """End the thread, before the next tensor if it loads."""
        self._closed.set()
        self._pool.shutdown()

    def _take(self, bucket: Arrived) -> None:
        try:
            with torch.no_grad(), on_stream(self._stream):
                self._load(self._unless_closed(_placed(bucket)))
        finally:  # nothing reads the bucket or writes the parameters any more
            if self._stream:
                self._stream.synchronize()
        self.names |= {entry.name for entry in bucket.entries}
        self.digests.append(digest(bucket.entries))

    def _unless_closed(self, tensors: NamedTensors) -> Iterator[tuple[str, Tensor]]:
        for named in tensors:
            if self._closed.is_set():
                raise AbandonedError("this update was abandoned")
            self._begun += 1
            yield named


def stream_of(device: torch.device) -> Any:
    """A CUDA stream for a thread whose work does not wait for what the server computes; None without a GPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """A context in which this thread uses the stream, and its device. `stream`: of `stream_of`."""
    return torch.cuda.stream(stream) if stream else nullcontext()


def _placed(bucket: Arrived) -> NamedTensors:
    """The tensors of a bucket. Slices are at their places in whole tensors, the rest of which has no memory."""
    for entry, (name, tensor) in zip(bucket.entries, unpack(bucket.entries, bucket.payload), strict=True):
        yield name, PartialTensor.of(name, entry.shape, entry.slice, tensor) if entry.slice else tensor
