"""Which prompt comes when. A function of seed, epoch and position only: not of the world size, nor of how often the run was interrupted."""

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.failure import ConfigurationError


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of epoch `epoch` (from 0) over `size` prompts."""
    order = list(range(size))
    digest = hashlib.sha256(f"order:{seed}:{epoch}".encode()).digest()
    random.Random(int.from_bytes(digest[:8])).shuffle(order)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the run is in its prompts, which are counted in their order over all epochs: trained steps have used all those before
    `consumed` that are not `pending`, and none after it."""

    consumed: int = 0
    pending: tuple[int, ...] = ()
    """Positions that were drawn and not used; they come first in the next draw."""

    def state(self, prompts: PromptSet) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "consumed": self.consumed,
            "pending": list(self.pending),
            "prompts": len(prompts),
            "digest": prompts.digest,
        }

    @staticmethod
    def restore(state: dict[str, Any], prompts: PromptSet) -> "Cursor":
        """Raises ConfigurationError when the data are not those the count was made on: the order would be another one."""
        size = len(prompts)
        if (state["prompts"], state["digest"]) != (size, prompts.digest):
            other = f"now there are {size}" if state["prompts"] != size else "and now their texts or order differ"
            raise ConfigurationError(
                "spec.data.train",
                f"{size} prompts",
                f"the checkpoint was made with {state['prompts']} prompts, {other}: the order would be another one",
                "restore the files, or start anew: with another spec.checkpoint.path and no resumeFrom",
            )
        return Cursor(state["consumed"], tuple(state["pending"]))

    def draw(self, count: int) -> tuple[tuple[int, ...], "Cursor"]:
        """The next `count` positions, and the cursor to which all of them are pending. A draw may cross the end of an epoch."""
        end = self.consumed + max(0, count - len(self.pending))
        pending = (*self.pending, *range(self.consumed, end))
        return pending[:count], Cursor(end, pending)

    def use(self, positions: Collection[int]) -> "Cursor":
        """The cursor once these pending positions are used."""
        return Cursor(self.consumed, tuple(p for p in self.pending if p not in positions))

    def epoch(self, prompts: PromptSet) -> float:
        """Passes over the data so far."""
        return self.consumed / len(prompts)


def prompt_at(position: int, spec: DataSpec, prompts: PromptSet) -> Prompt:
    """The prompt that comes at `position`."""
    epoch, place = divmod(position, len(prompts))
    return prompts[permutation(len(prompts), spec.seed, epoch)[place] if spec.shuffle else place]
