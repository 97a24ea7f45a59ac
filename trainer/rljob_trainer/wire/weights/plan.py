"""Who sends which part of a policy, who gets it, and how much that is."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rljob_trainer.wire.weights.fingerprint import padded
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice

GIB = 2**30
MOST_MORE = 1 / 8
"""Share of a tensor that slices of it may have twice, or need for padding."""


class GatherPhase(NamedTuple):
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
    """What one rank has sent to the same kinds of workers at a time."""

    kinds: Kinds
    digest: str
    """Of its tensors (bucket.digest)."""
    bytes: int
    """Of its tensors."""


@dataclass(frozen=True, slots=True)
class Receivers:
    """Which workers get a tensor, and which slice of it: other workers of their server may have its layer, its expert, or the rest of it."""

    needs: tuple[Needs, ...] = (Needs(),)
    """By kind, those of its workers."""
    kinds: Mapping[str, int] | None = None
    """By the name of a worker; None: all are of the first kind."""

    @staticmethod
    def of(needs: Mapping[str, Needs]) -> "Receivers":
        """By the name of a worker: what it needs."""
        kinds = {own: kind for kind, own in enumerate(dict.fromkeys(needs.values()))}
        return Receivers(tuple(kinds), {worker: kinds[own] for worker, own in needs.items()})

    def parts(self, tensor: str, shape: Sequence[int], width: int) -> list[tuple[Kinds, Slice | None]]:
        """The kinds that get the same of a tensor, and which slice; None: all of it. `width`: bytes of an element.

        It is sent in slices where these together are little more than the whole: a byte leaves its owner once, or nearly so. They are more where a
        slice is needed together with parts of others, or where the tensor is small, since each is padded."""
        kinds_of: dict[Slice | None, set[int]] = {}
        for kind, needs in enumerate(self.needs):
            part = needs.get(tensor)
            if part != NOTHING:
                kinds_of.setdefault(part if part and part.fits(shape) else None, set()).add(kind)
        pays = None not in kinds_of and _bytes(kinds_of, shape, width) <= (1 + MOST_MORE) * _bytes([None], shape, width)
        sent = kinds_of if pays else {None: set[int]().union(*kinds_of.values())}
        return [(frozenset(kinds), part) for part, kinds in sent.items() if kinds]

    def kind(self, worker: ServerWorker) -> int:
        return self.kinds[worker.name] if self.kinds is not None else 0

    def gets(self, kinds: Kinds, worker: ServerWorker) -> bool:
        return self.kind(worker) in kinds

    def received(self, parts: Iterable[SentPart]) -> list[list[SentPart]]:
        """[kind] -> what its workers receive of all parts."""
        sent = list(parts)
        return [[part for part in sent if kind in part.kinds] for kind in range(len(self.needs))]

    def sentence(self, parts: Sequence[SentPart], whole: int) -> str:
        """One line for the log; empty: every worker receives everything. `whole`: bytes of the policy."""
        sizes = [sum(part.bytes for part in own) / GIB for own in self.received(parts)]
        if len(sizes) < 2:
            return ""
        return f"weights: a worker receives {min(sizes):.2f} to {max(sizes):.2f} of {whole / GIB:.2f} GiB"

    def as_json(self) -> list[Any]:
        return [[own.as_json() for own in self.needs], self.kinds]

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Receivers":
        needs, kinds = data
        return Receivers(tuple(map(Needs.from_json, needs)), kinds)


def _bytes(parts: Iterable[Slice | None], shape: Sequence[int], width: int) -> int:
    """Of these slices of a tensor in buckets."""
    return sum(padded(width * math.prod(part.of(shape) if part else shape)) for part in parts)
