"""Who sends which part of a policy, and how much that is. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
