"""What supervised tasks learn from: sequences of tokens that are given, of which some are learnt."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import overload

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.formats import Reason
from rljob_trainer.data.order import Mixture
from rljob_trainer.wire.trajectory import LEARNT, Segment

Variant = tuple[Segment, ...]
"""One sequence: first a `prompt` of at least one token, since nothing predicts the first token of a sequence; then `demonstration` where tokens are
learnt, and `environment` where they are given."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row, ready to be learnt."""

    index: int
    """Row in the data set, counted over all its files and before any is left out; of `pretrain` the number of the packed sequence."""
    variants: tuple[Variant, ...]
    """One of a conversation; chosen and rejected of a pair; of `pretrain` the documents that one packed sequence of maxTokens holds. Empty when the
    row is left out."""
    data_source: str = ""
    """The file that holds it, for people."""
    left_out: Reason | None = None
    """Why there is nothing to learn."""
    cut: bool = False
    """The conversation was cut behind a turn, to fit into maxTokens."""

    def __post_init__(self) -> None:
        assert bool(self.variants) != bool(self.left_out), "a row is learnt or left out"
        for variant in self.variants:
            sources = [segment.source for segment in variant if len(segment.tokens)]
            assert sources and sources[0] == "prompt", "the first token of a sequence is given"
            assert "prompt" not in sources[1:], "what is given later is an environment's"
            assert any(source in LEARNT for source in sources), "there is something to learn"


@dataclass(slots=True)
class Counts:
    """What became of the rows that were read so far."""

    rows: int = 0
    too_long: int = 0
    cut: int = 0
    no_assistant: int = 0
    masked: int = 0
    empty: int = 0
    equal_pair: int = 0

    def add(self, example: Example) -> None:
        self.rows += 1
        self.cut += example.cut
        if example.left_out:
            setattr(self, example.left_out, getattr(self, example.left_out) + 1)

    def metrics(self) -> dict[str, float]:
        """All but the rows themselves, under their names in rljob_api/metrics.py."""
        return {f"data/{f.name}": float(getattr(self, f.name)) for f in fields(self) if f.name != "rows"}


class ExampleSet(Sequence[Example], ABC):
    """The examples of one split, each made when it is asked for. An epoch draws as many as there are."""

    digest: int
    """Equal for equal data: of the number of rows of every file, and of some of them spread over it."""

    def __init__(self, sizes: Sequence[int], data: DataSpec, split: str):
        mixed = split == "train"
        self.counts = Counts()
        self.notes: Collection[str] = ()
        """What was seen in the first rows that is no mistake and may be meant otherwise."""
        self._order = Mixture(tuple(sizes), tuple(data.weights) if mixed else (), data.seed, data.shuffle and mixed)

    @property
    def sizes(self) -> Sequence[int]:
        """Rows of each file."""
        return self._order.sizes

    def __len__(self) -> int:
        return sum(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """The example of a row; in this process."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._example(range(len(self))[index])

    async def drawn(self, positions: Sequence[int]) -> list[Example]:
        """The examples that come at these positions of the order over all epochs, and count them. Those that are left out are among them, so
        that a position is used once, whatever became of it.

        Raises ConfigurationError for a row of another shape than its file's format has; it names file and row.
        """
        examples = await self._examples([self._order.row(p) for p in positions])
        for example in examples:
            self.counts.add(example)
        return examples

    def close(self) -> None:
        """End what reads ahead; the set can be read no more."""

    @abstractmethod
    def _example(self, index: int) -> Example: ...

    @abstractmethod
    async def _examples(self, indices: Sequence[int]) -> list[Example]: ...
