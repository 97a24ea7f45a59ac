"""Which part of each tensor a worker needs. No torch here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rljob_trainer.wire.weights.tensor_names import Box, TensorNames, apart, is_in


class Slice(NamedTuple):
    """Part of a tensor: ranges of one of its dimensions, all of the others. It is sent as one tensor, in which the ranges follow each other."""

    dim: int
    ranges: tuple[tuple[int, int], ...]
    """[first, end) of each. In order, and apart from each other."""

    @property
    def length(self) -> int:
        """Along its dimension."""
        return sum(end - first for first, end in self.ranges)

    def of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of this part of a tensor."""
        return (*shape[: self.dim], self.length, *shape[self.dim + 1 :])

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of a shape has it."""
        return self.dim < len(shape) and all(end <= shape[self.dim] for _, end in self.ranges)

    def __str__(self) -> str:
        return f"{self.dim}:" + ",".join(f"{first}-{end}" for first, end in self.ranges)

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Slice":
        dim, ranges = data
        return Slice(dim, tuple((first, end) for first, end in ranges))


NOTHING = Slice(0, ())


def covering(shape: Sequence[int], regions: Sequence[Sequence[tuple[int, int]]]) -> Slice | None:
    """The smallest slice that contains all regions; None: only the whole tensor does. `regions`: [first, end) along each dimension."""
    if not regions or not math.prod(shape):
        return NOTHING
    along = [Slice(dim, _united(region[dim] for region in regions)) for dim in range(len(shape))]
    least = min(along, key=lambda part: part.length / shape[part.dim], default=NOTHING)
    return least if along and least.length < shape[least.dim] else None


@dataclass(frozen=True)
class Needs:
    """What a worker needs of an update: whole tensors, but for those that are named here."""

    named: tuple[tuple[Slice, TensorNames], ...] = ()

    @staticmethod
    def of(slices: Mapping[str, Slice]) -> "Needs":
        """By the name of a tensor. Equal needs are equal, whatever they were made from."""
        names: dict[Slice, list[str]] = {}
        for name, part in slices.items():
            names.setdefault(part, []).append(name)
        return Needs(tuple((part, TensorNames.of(names[part])) for part in sorted(names)))

    def get(self, name: str) -> Slice | None:
        """What is needed of a tensor; None: all of it."""
        if not self.named:
            return None
        text, numbers = apart(name)
        return next((part for part, box in self._by_text.get(text, ()) if is_in(box, numbers)), None)

    def as_json(self) -> list[Any]:
        return [[part, names.as_json()] for part, names in self.named]

    @staticmethod
    def from_json(data: Iterable[Sequence[Any]]) -> "Needs":
        return Needs(tuple((Slice.from_json(part), TensorNames.from_json(names)) for part, names in data))

    @cached_property
    def _by_text(self) -> dict[str, list[tuple[Slice, Box]]]:
        slices: dict[str, list[tuple[Slice, Box]]] = {}
        for part, names in self.named:
            for text, box in names.boxes:
                slices.setdefault(text, []).append((part, box))
        return slices


def _united(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Those that touch or overlap are one."""
    united: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if united and first <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((first, end))
    return tuple(united)
