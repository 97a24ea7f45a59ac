"""reasoning-gym: a data set judges one turn, the answer to the question of the row. agents/generated_data.py has its rows written."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer

from rljob_trainer.agents.api import Policy, Prompt, Trajectory
from rljob_trainer.agents.environments.threads import in_thread
from rljob_trainer.agents.episode import Nonsense

ENTRY = "entry"
"""Column of the question, the answer and what the library knows besides."""
GRIDS = {"arc_agi", "rearc"}
"""Data sets that compare tuples, which JSON makes lists of."""


def load(environment: str, arguments: dict[str, Any]) -> "ReasoningGym":
    """`environment`: name of a data set. `arguments`: fields of its configuration."""
    return ReasoningGym(environment, reasoning_gym.create_dataset(environment, **arguments))


def rows(environment: str, arguments: dict[str, Any], offset: int, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Questions with their answers, from `offset` on. The library draws question i with the seed `seed` + i, so near seeds give the same ones."""
    made = reasoning_gym.create_dataset(environment, **arguments | {"size": offset + size, "seed": seed})
    for entry in islice(made, offset, offset + size):
        yield {"prompt": entry["question"], "answer": entry["answer"], ENTRY: entry}


class ReasoningGym:
    def __init__(self, environment: str, data_set: Any):
        self._environment, self._data_set = environment, data_set

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory | None:
        entry = row.get(ENTRY)
        if not isinstance(entry, Mapping):
            raise Nonsense(f"judges rows that spec.data.generated has written, and this one has no column {ENTRY!r}")
        turn = await policy.generate(prompt.tokens)
        if turn is None:
            return None
        return Trajectory(turn.whole, reward=await in_thread(self._score, turn.text, dict(entry)))

    def _score(self, text: str, entry: dict[str, Any]) -> float:
        """Of what stands in the last <answer>, or else of the whole turn."""
        answer = extract_answer(text)
        known = _tuples(entry) if self._environment in GRIDS else entry
        return self._data_set.score_answer(text.strip() if answer is None else answer, known)


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
