"""A set of tensors by their names, in few words: the layers of a stage, or the experts of a worker, are names that differ in their numbers only."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

NUMBER = re.compile(r"(?<!\d)(0|[1-9]\d*)(?!\d)")
Box = tuple[frozenset[int], ...]
"""All names of one text whose numbers are, one by one, in these sets."""


@dataclass(frozen=True)
class TensorNames:
    """Equal sets are equal, whatever they were made from."""

    boxes: tuple[tuple[str, Box], ...] = ()
    """With the text around the numbers, in which `{}` stands for each."""

    @staticmethod
    def of(names: Iterable[str]) -> "TensorNames":
        numbers: dict[tuple[str, int], set[tuple[int, ...]]] = {}
        for name in names:
            text, numbers_of_name = apart(name)
            numbers.setdefault((text, len(numbers_of_name)), set()).add(numbers_of_name)
        return TensorNames(
            tuple((text, box) for (text, _), points in sorted(numbers.items()) for box in _boxes(points))
        )

    def __contains__(self, name: str) -> bool:
        if not self.boxes:
            return False
        text, numbers = apart(name)
        return any(is_in(box, numbers) for box in self._by_text.get(text, ()))

    def as_json(self) -> list[Any]:
        """[text, [[first, last] of each range of a number] of each number] of each box."""
        return [[text, [_ranges(numbers) for numbers in box]] for text, box in self.boxes]

    @staticmethod
    def from_json(data: Iterable[Sequence[Any]]) -> "TensorNames":
        return TensorNames(tuple((text, tuple(map(_numbers, box))) for text, box in data))

    @cached_property
    def _by_text(self) -> dict[str, list[Box]]:
        boxes: dict[str, list[Box]] = {}
        for text, box in self.boxes:
            boxes.setdefault(text, []).append(box)
        return boxes


@lru_cache(maxsize=1024)  # a name is looked up in one set after another
def apart(name: str) -> tuple[str, tuple[int, ...]]:
    """A name's text, and the numbers in it."""
    return NUMBER.sub("{}", name), tuple(map(int, NUMBER.findall(name)))


def is_in(box: Box, numbers: tuple[int, ...]) -> bool:
    """Whether a box has them, which may be more or fewer than it has sets."""
    return len(box) == len(numbers) and all(map(frozenset.__contains__, box, numbers))


def _boxes(points: Iterable[tuple[int, ...]]) -> list[Box]:
    """Disjoint boxes that together are these points, all of which have as many numbers. The same for the same points."""
    rests: dict[int, set[tuple[int, ...]]] = {}
    for point in points:
        if not point:
            return [()]
        rests.setdefault(point[0], set()).add(point[1:])
    firsts: dict[frozenset[tuple[int, ...]], set[int]] = {}
    for first, rest in sorted(rests.items()):
        firsts.setdefault(frozenset(rest), set()).add(first)
    return [(frozenset(first), *box) for rest, first in firsts.items() for box in _boxes(rest)]


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """[first, last] of each."""
    ordered = sorted(numbers)
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(ordered)) if b != a + 1]
    return [[ordered[a], ordered[b - 1]] for a, b in pairwise([0, *breaks, len(ordered)])]


def _numbers(ranges: Iterable[Sequence[int]]) -> frozenset[int]:
    return frozenset(n for first, last in ranges for n in range(first, last + 1))
