"""One rank's part of the policy, on its way to the servers: every bucket goes to all workers that get it, while the next one is exported."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rljob_trainer.rank.weights.attendance import Loss, LossCause
from rljob_trainer.rank.weights.delivery import Delivery, KeptGroup
from rljob_trainer.wire.weights.bucket import Bucket, Entry, divided, pack, torch_dtype, total
from rljob_trainer.wire.weights.plan import GatherPhase, Kinds, Receivers, SentPart
from rljob_trainer.wire.weights.protocol import Offer, ServerWorker
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.slices import Slice
from rljob_trainer.wire.weights.transport import Transport


@dataclass(frozen=True, slots=True)
class Opened:
    """An update that servers have opened."""

    name: str
    servers: dict[str, tuple[ServerWorker, ...]]
    """By pod: its workers."""
    receivers: Receivers = field(default_factory=Receivers)

    def as_json(self) -> list[Any]:
        return [self.name, self.servers, self.receivers.as_json()]

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Opened":
        name, servers, receivers = data
        workers = {pod: tuple(ServerWorker(*member) for member in members) for pod, members in servers.items()}
        return Opened(name, workers, Receivers.from_json(receivers))


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank has sent."""

    digest: str
    """Of its tensors, however they were cut (bucket.digest)."""
    bytes: int
    """Of its tensors."""
    parts: list[SentPart]
    failed: dict[str, Loss]
    """By pod: why its server did not get them."""
    waited: float = 0.0
    """Seconds in which this rank exported nothing, because servers had not received what was sent."""

    def as_json(self) -> list[Any]:
        parts = [[sorted(kinds), *rest] for kinds, *rest in self.parts]
        return [self.digest, self.bytes, parts, self.failed, self.waited]

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Sent":
        digest, size, parts, failed, waited = data
        return Sent(
            digest,
            size,
            [SentPart(frozenset(kinds), *rest) for kinds, *rest in parts],
            {pod: Loss(LossCause(cause), why) for pod, (cause, why) in failed.items()},
            waited,
        )


class Sender:
    """This rank's end of the groups with servers, which live as long as the attempt."""

    def __init__(self, transport: Transport, awaits: Callable[[str], None]) -> None:
        self._transport, self._awaits = transport, awaits
        self._home = SenderStore(transport.address)
        self._groups: dict[tuple[ServerWorker, ...], KeptGroup] = {}
        self._last: Set[tuple[ServerWorker, ...]] = frozenset()
        """Those that the last update used."""

    @property
    def offer(self) -> Offer:
        """Where servers find this sender."""
        return self._home.offer

    def send(self, phases: Iterable[GatherPhase], opened: Opened, index: int, heartbeat: Callable[[], None]) -> Sent:
        """Send to all servers that have opened the update. `index`: this sender's place among the offers; each begins its chain at another server.

        All phases are exhausted even if every server fails. Raises what they raise; the servers keep their old weights then.
        """
        self._home.keep([opened.name, *(group.name for group in self._groups.values())])
        servers = _chain(opened.servers, index)
        delivery = Delivery(self._transport, self._home, opened.name, servers, self._awaits, self._groups)
        wholes, parts, device, receivers = list[tuple[str, int]](), list[SentPart](), self._memory(), opened.receivers
        with ThreadPoolExecutor(1, "weights", initializer=partial(_use, device)) as pool:
            talk = _Talk(pool)
            try:
                for tensors, sends, _ in phases:
                    packed = pack(tensors, self._transport.bucket_bytes, device) if sends else ()
                    whole = _noted(packed, wholes, heartbeat)
                    for kinds, bucket in divided(whole, partial(_parts, receivers), index):
                        parts.append(SentPart(kinds, bucket.digest, bucket.size))
                        talk.wait()
                        talk.add(partial(delivery.send, bucket, partial(receivers.gets, kinds)))
                        heartbeat()
                    talk.add(delivery.end_phase)
                    for _ in tensors:
                        pass
                talk.add(delivery.complete)
                talk.wait()
            except BaseException:
                talk.add(delivery.close)
                raise
        self._keep(delivery.groups)
        whole_digest, size = total(one for one, _ in wholes), sum(size for _, size in wholes)
        return Sent(whole_digest, size, parts, delivery.failed, talk.waited)

    def _keep(self, used: Mapping[tuple[ServerWorker, ...], KeptGroup]) -> None:
        """Between updates those groups live on that the last two of them used: servers that come later get their first policy alone."""
        for members in self._groups.keys() - self._last:
            self._groups.pop(members).end.close()
        self._groups |= used
        self._last = used.keys()

    def _memory(self) -> torch.device:
        """The device of buckets."""
        return torch.device("cuda", torch.cuda.current_device()) if self._transport.on_gpu else torch.device("cpu")


def _noted(packed: Iterable[Bucket], wholes: list[tuple[str, int]], heartbeat: Callable[[], None]) -> Iterator[Bucket]:
    """The buckets, of which digest and size are remembered, whoever gets them. `heartbeat` is called for each."""
    for bucket in packed:
        wholes.append((bucket.digest, bucket.size))
        heartbeat()
        yield bucket
        del bucket


def _parts(receivers: Receivers, entry: Entry) -> list[tuple[Kinds, Slice | None]]:
    return receivers.parts(entry.name, entry.shape, torch_dtype(entry.dtype).itemsize)


def _use(device: torch.device) -> None:
    """Have this thread use a GPU, which CUDA does not inherit from the one that made it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


class _Talk:
    """What is said to servers, one thing after another, while this rank exports: other ranks may need it for what they send."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._under_way: list[Future[None]] = []
        self.waited = 0.0
        """Seconds."""

    def add(self, say: Callable[[], None]) -> None:
        self._under_way.append(self._pool.submit(say))

    def wait(self) -> None:
        """Wait for everything. Raises what it raises."""
        began = time.monotonic()
        while self._under_way:
            self._under_way.pop(0).result()
        self.waited += time.monotonic() - began


def _chain(servers: Mapping[str, Sequence[ServerWorker]], index: int) -> dict[str, Sequence[ServerWorker]]:
    """In the order in which the sender at `index` reaches them: the first is another one for each sender."""
    pods = list(servers)
    first = index % len(pods) if pods else 0
    return {pod: servers[pod] for pod in pods[first:] + pods[:first]}
