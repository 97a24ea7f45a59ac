"""Which row comes when. A function of seed, epoch and position only: not of the world size, nor of how often the run was interrupted."""

import hashlib
import json
import math
import random
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import DataSpec
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.failure import ConfigurationError


class Dataset(Protocol):
    """What is drawn from: prompts or examples."""

    digest: int

    @property
    def sizes(self) -> Sequence[int]:
        """Rows of each file."""
        ...

    def __len__(self) -> int: ...


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of epoch `epoch` (from 0) over `size` prompts."""
    order = list(range(size))
    digest = hashlib.sha256(f"order:{seed}:{epoch}".encode()).digest()
    random.Random(int.from_bytes(digest[:8])).shuffle(order)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the run is in its data, which are counted in their order over all epochs: trained steps have used all those before
    `consumed` that are not `pending`, and none after it."""

    consumed: int = 0
    pending: tuple[int, ...] = ()
    """Positions that were drawn and not used; they come first in the next draw."""

    def state(self, data: Dataset, spec: DataSpec) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "consumed": self.consumed,
            "pending": list(self.pending),
            "rows": len(data),
            "digest": data.digest,
            "order": _ordering(data, spec),
        }

    @staticmethod
    def restore(state: dict[str, Any], data: Dataset, spec: DataSpec) -> "Cursor":
        """Raises ConfigurationError when the count was made on other data, or on the same in another order: some would be trained twice."""
        size = len(data)
        if (state["rows"], state["digest"]) != (size, data.digest):
            other = f"now there are {size}" if state["rows"] != size else "and now their texts or order differ"
            made = f"the checkpoint was made with {state['rows']} rows, {other}: the order would be another one"
            raise ConfigurationError("spec.data.train", f"{size} rows", made, f"restore the files, or {_ANEW}")
        for field, now in _ordering(data, spec).items():
            before = state["order"][field]
            if before != now:
                rule = f"the checkpoint was made with {json.dumps(before)}: in another order, some rows would come twice and some never"
                raise ConfigurationError(f"spec.data.{field}", json.dumps(now), rule, f"set it back, or {_ANEW}")
        return Cursor(state["consumed"], tuple(state["pending"]))

    def draw(self, count: int) -> tuple[tuple[int, ...], "Cursor"]:
        """The next `count` positions, and the cursor to which all of them are pending. A draw may cross the end of an epoch."""
        end = self.consumed + max(0, count - len(self.pending))
        pending = (*self.pending, *range(self.consumed, end))
        return pending[:count], Cursor(end, pending)

    def including(self, positions: Collection[int]) -> "Cursor":
        """The cursor to which all positions up to the last of these are drawn."""
        end = max([self.consumed, *(position + 1 for position in positions)])
        return Cursor(end, (*self.pending, *range(self.consumed, end)))

    def use(self, positions: Collection[int]) -> "Cursor":
        """The cursor once these pending positions are used."""
        used = frozenset(positions)  # looked up for each of as many
        return Cursor(self.consumed, tuple(p for p in self.pending if p not in used))

    def epoch(self, data: Dataset) -> float:
        """Passes over the data so far."""
        return self.consumed / len(data)


_ANEW = "start anew: with another spec.checkpoint.path and no resumeFrom"


def _ordering(data: Dataset, spec: DataSpec) -> dict[str, Any]:
    """All that the order depends on besides the rows, by the field of spec.data that says it. JSON gives back equal values."""
    return {
        "shuffle": spec.shuffle,
        "seed": spec.seed if spec.shuffle else None,
        "weights": list(spec.weights),
        "train": list(data.sizes) if spec.weights else [],
    }


def prompt_at(position: int, spec: DataSpec, prompts: PromptSet) -> Prompt:
    """The prompt that comes at `position`."""
    if spec.weights:
        mixture = Mixture(tuple(prompts.counts.kept.values()), tuple(spec.weights), spec.seed, spec.shuffle)
        return prompts[mixture.row(position)]
    epoch, place = divmod(position, len(prompts))
    return prompts[permutation(len(prompts), spec.seed, epoch)[place] if spec.shuffle else place]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The order of the rows of several files, counted one file after another. An epoch has as many draws as there are rows, of which each file gets
    its share; a file with a larger share than its own size comes again, one with a smaller share continues in the next epoch."""

    sizes: tuple[int, ...]
    """Rows of each file."""
    weights: tuple[float, ...]
    """Share of each; empty: its size."""
    seed: int
    shuffle: bool

    def row(self, position: int) -> int:
        """The row at `position`, in constant time and memory."""
        epoch, place = divmod(position, sum(self.sizes))
        place = self._scattered(place, sum(self.sizes), "all", epoch)
        if not self.weights:
            return place
        quotas = _quotas(sum(self.sizes), self.weights)
        starts = [0, *accumulate(quotas)]
        file = bisect_right(starts, place) - 1
        again, place = divmod(epoch * quotas[file] + place - starts[file], self.sizes[file])
        return sum(self.sizes[:file]) + self._scattered(place, self.sizes[file], str(file), again)

    def _scattered(self, place: int, size: int, what: str, epoch: int) -> int:
        return scattered(place, size, f"{self.seed}:{what}:{epoch}") if self.shuffle else place


def scattered(place: int, size: int, key: str) -> int:
    """Where a permutation of range(size), chosen by `key`, puts `place`, without the list of it.

    A Feistel network over the next larger square, walked until it ends within the range (Black and Rogaway, CT-RSA 2002).
    """
    bits = max(1, (size - 1).bit_length() + 1 >> 1)
    mask = (1 << bits) - 1
    while True:
        left, right = place >> bits, place & mask
        for number in _keys(key):
            left, right = right, left ^ (_mixed(right + number) & mask)
        place = left << bits | right
        if place < size:
            return place


@lru_cache(maxsize=64)
def _keys(key: str) -> tuple[int, ...]:
    digest = hashlib.sha512(f"scattered:{key}".encode()).digest()
    return tuple(int.from_bytes(digest[i : i + 8]) for i in range(0, 64, 8))


def _mixed(x: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood 2014)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31


@lru_cache(maxsize=4)
def _quotas(draws: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Draws of each file: whole numbers, the largest remainders rounded up."""
    exact = [draws * w / sum(weights) for w in weights]
    quotas = [int(x) for x in exact]
    for i in sorted(range(len(exact)), key=lambda i: quotas[i] - exact[i])[: draws - sum(quotas)]:
        quotas[i] += 1
    return tuple(quotas)


def steps_of(spec: RLJobSpec, rows: int) -> int:
    """Of the whole job, with so many rows of training data: the last step may begin another epoch.

    Prompts that dynamic sampling or over-sampling leave out are replaced by others, which are passed sooner than `epochs` says.
    """
    if spec.train.steps is not None:
        return spec.train.steps
    assert spec.train.epochs is not None, "one of both is given"
    return max(1, math.ceil(spec.train.epochs * rows / Amounts.of(spec).groups_per_step))


def with_steps(spec: RLJobSpec, steps: int) -> RLJobSpec:
    """With steps in place of epochs."""
    return spec.model_copy(update={"train": spec.train.model_copy(update={"steps": steps, "epochs": None})})
