"""What supervised tasks learn from: sequences of tokens that are given, of which some are learnt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rljob_trainer.trajectory import LEARNT, Segment

Variant = tuple[Segment, ...]
"""One sequence: first a `prompt` of at least one token, since nothing predicts the first token of a sequence; then `demonstration` where tokens are
learnt, and `environment` where they are given."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row, ready to be learnt."""

    index: int
    """Row in the data set, counted over all its files and before any is left out."""
    variants: tuple[Variant, ...]
    """One of a conversation; chosen and rejected of a pair; of `pretrain` the documents that one packed sequence of maxTokens holds."""
    data_source: str = ""
    """Where the row comes from, for people."""

    def __post_init__(self) -> None:
        for variant in self.variants:
            sources = [segment.source for segment in variant if len(segment.tokens)]
            assert sources and sources[0] == "prompt", "the first token of a sequence is given"
            assert "prompt" not in sources[1:], "what is given later is an environment's"
            assert any(source in LEARNT for source in sources), "there is something to learn"


class ExampleSet(Protocol):
    """The usable examples of one split, in the order of the files. Tokenised when they are asked for."""

    digest: int
    """Of the data and of all that decides what becomes of them: equal for equal examples in equal order."""
    counts: Mapping[str, int]
    """What became of the rows: `rows`, and by reason those that were left out or cut."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Example: ...
