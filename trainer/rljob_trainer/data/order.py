"""Which prompt comes when. A function of seed, epoch and position only: not of the world size, nor of how often the run was interrupted."""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

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
    """How far the run is in its prompts: the count of prompts consumed by trained steps is the whole truth."""

    consumed: int = 0

    def state(self, prompts: PromptSet) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"consumed": self.consumed, "prompts": len(prompts), "digest": prompts.digest}

    @staticmethod
    def restore(state: dict[str, int], prompts: PromptSet) -> "Cursor":
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
        return Cursor(state["consumed"])

    def draw(self, spec: DataSpec, prompts: PromptSet, count: int) -> tuple[tuple[Prompt, ...], "Cursor"]:
        """The next `count` prompts and the cursor after them. A draw may cross the end of an epoch."""
        size = len(prompts)
        drawn = [prompts[self._row(spec, size, self.consumed + i)] for i in range(count)]
        return tuple(drawn), Cursor(self.consumed + count)

    def epoch(self, prompts: PromptSet) -> float:
        """Passes over the data so far."""
        return self.consumed / len(prompts)

    @staticmethod
    def _row(spec: DataSpec, size: int, position: int) -> int:
        epoch, place = divmod(position, size)
        return permutation(size, spec.seed, epoch)[place] if spec.shuffle else place
