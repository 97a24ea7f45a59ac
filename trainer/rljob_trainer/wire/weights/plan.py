"""Who sends which part of a policy, who gets it, and how much that is. No torch here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rljob_trainer.wire.weights.protocol import Member
from rljob_trainer.wire.weights.tensor_names import TensorNames

GIB = 2**30


class Phase(NamedTuple):
    """Tensors that some ranks gather among themselves, for one of them that sends them.

    Servers take buckets of all senders in turn, so a sender may have to wait for any other one. Therefore a rank that sends in a phase must not be
    needed for what another rank sends in it, and a phase begins at a server when all senders have ended the one before.
    """

    tensors: Iterator[tuple[str, Any]]
    """Hugging Face names and tensors. Has to be exhausted, which is collective over the ranks that gather; empty on others."""
    sends: bool
    """Whether this rank sends them."""
    bytes: int = 0
    """Of the tensors that this rank sends, if that is known before they are exported."""


class Share(NamedTuple):
    """What one rank sends at every update, once, however many servers there are."""

    rank: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The senders of a policy, in the order in which servers take turns with them."""

    shares: tuple[Share, ...]

    @staticmethod
    def of(bytes_by_rank: Sequence[int | None]) -> "TransferPlan":
        """[rank] -> what it sends, None: it is no sender."""
        return TransferPlan(tuple(Share(rank, size) for rank, size in enumerate(bytes_by_rank) if size is not None))

    @property
    def total(self) -> int:
        """Bytes of a whole update."""
        return sum(share.bytes for share in self.shares)

    def sentence(self, servers: int) -> str:
        """One line for the log."""
        most = max(self.shares, key=lambda share: share.bytes)
        return (
            f"weights: {len(self.shares)} of the ranks send {self.total / GIB:.2f} GiB through {servers} servers, "
            f"rank {most.rank} most with {most.bytes / GIB:.2f} GiB"
        )


Kinds = frozenset[int]
"""Kinds of workers: those of a kind need the same tensors."""


class SentPart(NamedTuple):
    """What one rank has sent to the same kinds of workers."""

    kinds: Kinds
    digest: str
    """Of its tensors (bucket.digest)."""
    bytes: int
    """Of its tensors."""


@dataclass(frozen=True, slots=True)
class Receivers:
    """Which workers get a tensor: all but those that do not need it, since other workers of their server have its layer or its expert."""

    needless: tuple[TensorNames, ...] = (TensorNames(),)
    """By kind, what its workers do not need."""
    kinds: Mapping[str, int] | None = None
    """By the name of a worker; None: all are of the first kind."""

    @staticmethod
    def of(needless: Mapping[str, TensorNames]) -> "Receivers":
        """By the name of a worker: what it does not need."""
        kinds = {names: kind for kind, names in enumerate(dict.fromkeys(needless.values()))}
        return Receivers(tuple(kinds), {worker: kinds[names] for worker, names in needless.items()})

    def get(self, tensor: str) -> Kinds:
        """The kinds that get it."""
        return frozenset(kind for kind, names in enumerate(self.needless) if tensor not in names)

    def kind(self, worker: Member) -> int:
        return self.kinds[worker.name] if self.kinds is not None else 0

    def gets(self, kinds: Kinds, worker: Member) -> bool:
        return self.kind(worker) in kinds

    def received(self, parts: Iterable[SentPart]) -> list[list[SentPart]]:
        """[kind] -> what its workers receive of all parts."""
        found = list(parts)
        return [[part for part in found if kind in part.kinds] for kind in range(len(self.needless))]

    def sentence(self, parts: Sequence[SentPart]) -> str:
        """One line for the log; empty: every worker receives everything."""
        sizes = [sum(part.bytes for part in own) / GIB for own in self.received(parts)]
        whole = sum(part.bytes for part in parts) / GIB
        return (
            f"weights: a worker receives {min(sizes):.2f} to {max(sizes):.2f} of {whole:.2f} GiB"
            if len(sizes) > 1
            else ""
        )

    def as_json(self) -> list[Any]:
        return [[names.as_json() for names in self.needless], self.kinds]

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Receivers":
        needless, kinds = data
        return Receivers(tuple(map(TensorNames.from_json, needless)), kinds)
