"""One rank's part of the policy, on its way to the servers: every bucket goes to all of them, while the next one is exported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rljob_trainer.rank.weights.attendance import Loss, LossCause
from rljob_trainer.rank.weights.delivery import Delivery, KeptGroup
from rljob_trainer.wire.weights.bucket import digest, pack, total
from rljob_trainer.wire.weights.plan import Phase
from rljob_trainer.wire.weights.protocol import Member, Offer
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.transport import Transport

MOST_GROUPS = 2
"""Groups that live on between updates: that of all servers, and that of those which came later and got their first policy alone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An update that servers have opened."""

    name: str
    servers: dict[str, tuple[Member, ...]]
    """By pod: its workers."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank has sent."""

    digest: str
    """Of its tensors (bucket.digest)."""
    bytes: int
    """Of its tensors."""
    failed: dict[str, Loss]
    """By pod: why it did not get them."""

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> "Sent":
        failed = {pod: Loss(LossCause(cause), why) for pod, (cause, why) in fields["failed"].items()}
        return Sent(fields["digest"], fields["bytes"], failed)


class Sender:
    """This rank's end of the groups with servers, which live as long as the attempt."""

    def __init__(self, transport: Transport, awaits: Callable[[str], None]) -> None:
        self._transport, self._awaits = transport, awaits
        self._home = SenderStore(transport.address)
        self._groups: dict[tuple[Member, ...], KeptGroup] = {}

    @property
    def offer(self) -> Offer:
        """Where servers find this sender."""
        return self._home.offer

    def send(self, phases: Iterable[Phase], opened: Opened, index: int, heartbeat: Callable[[], None]) -> Sent:
        """Send to all servers that have opened the update. `index`: this sender's place among the offers; each begins its chain at another server.

        All phases are exhausted even if every server fails. Raises what they raise; the servers keep their old weights then.
        """
        delivery = Delivery(self._transport, self._home, opened.name, _chain(opened.servers, index), self._awaits)
        digests, size, device = [], 0, self._memory()
        with ThreadPoolExecutor(1, "weights", initializer=partial(_use, device)) as pool:
            talk = _Talk(pool)
            try:
                talk.add(lambda: delivery.join(self._groups.pop(delivery.members, None)))
                for tensors, sends, _ in phases:
                    for bucket in pack(tensors, self._transport.bucket_bytes, device) if sends else ():
                        digests.append(digest(bucket.entries))
                        size += sum(entry.size for entry in bucket.entries)
                        talk.wait()
                        talk.add(partial(delivery.send, bucket))
                        heartbeat()
                    talk.add(delivery.end_phase)
                    for _ in tensors:
                        pass
                talk.add(delivery.complete)
                talk.wait()
            except BaseException:
                talk.add(delivery.close)
                raise
        self._keep(delivery.group)
        return Sent(total(digests), size, delivery.failed)

    def _keep(self, group: KeptGroup | None) -> None:
        if group:
            self._groups[group.members] = group
        while len(self._groups) > MOST_GROUPS:
            self._groups.pop(next(iter(self._groups))).end.close()

    def _memory(self) -> torch.device:
        """The device of buckets."""
        return torch.device("cuda", torch.cuda.current_device()) if self._transport.on_gpu else torch.device("cpu")


def _use(device: torch.device) -> None:
    """Have this thread use a GPU, which CUDA does not inherit from the one that made it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


class _Talk:
    """What is said to servers, one thing after another, while this rank exports: other ranks may need it for what they send."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._under_way: list[Future[None]] = []

    def add(self, say: Callable[[], None]) -> None:
        self._under_way.append(self._pool.submit(say))

    def wait(self) -> None:
        """Wait for everything. Raises what it raises."""
        while self._under_way:
            self._under_way.pop(0).result()


def _chain(servers: Mapping[str, Sequence[Member]], index: int) -> dict[str, Sequence[Member]]:
    """In the order in which the sender at `index` reaches them: the first is another one for each sender."""
    pods = list(servers)
    first = index % len(pods) if pods else 0
    return {pod: servers[pod] for pod in pods[first:] + pods[:first]}
