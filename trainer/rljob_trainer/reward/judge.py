"""Judges by data source: the entries of spec.rewards, weighted and summed. A failed entry fails the sample, it is never a silent 0."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from rljob_api.spec.model import RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reward.case import Case
from rljob_trainer.reward.entries import entries_of
from rljob_trainer.reward.python_file import PythonFile
from rljob_trainer.reward.rules import RULES

MOST_WORKERS = 8
"""Processes of one reward file: each imports it."""


class Scorer(Protocol):
    """One entry of spec.rewards."""

    async def score(self, case: Case) -> float:
        """Raises RewardFailed."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Rule:
    """A built-in rule."""

    def __init__(self, name: str):
        self._rule = RULES[name]

    async def score(self, case: Case) -> float:
        return self._rule(case.response, case.answer)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Judge:
    """All entries. `start` before and `stop` after."""

    def __init__(self, rewards: Sequence[RewardSpec]):
        self._rewards = rewards
        self._scorers = [_scorer(i, spec) for i, spec in enumerate(rewards)]

    async def start(self) -> None:
        """Start the processes. Raises ConfigurationError for a reward file that cannot be imported or lacks its function."""
        await asyncio.gather(*(scorer.start() for scorer in self._scorers))

    async def stop(self) -> None:
        await asyncio.gather(*(scorer.stop() for scorer in self._scorers))

    def require(self, data_sources: Iterable[str]) -> None:
        """Raises ConfigurationError for a data source that nobody judges."""
        for source in sorted(data_sources):
            if not entries_of(self._rewards, source):
                rule = f"no entry judges the data source {source!r} of spec.data"
                raise ConfigurationError(
                    "spec.rewards", source, rule, f"add an entry with dataSource {source!r} or '*'"
                )

    async def score(self, data_source: str, case: Case) -> float:
        """The weighted sum. Raises RewardFailed when any part fails."""
        parts = await asyncio.gather(
            *(self._weighted(i, spec, case) for i, spec in entries_of(self._rewards, data_source))
        )
        return sum(parts)

    async def _weighted(self, index: int, spec: RewardSpec, case: Case) -> float:
        return spec.weight * await self._scorers[index].score(case)


def _scorer(index: int, spec: RewardSpec) -> Scorer:
    if spec.python is None:
        assert spec.rule is not None, "the spec was checked: exactly one of rule and python"
        return Rule(spec.rule)
    return PythonFile(
        f"spec.rewards[{index}].python.path", spec.python, spec.timeout_seconds, min(os.cpu_count() or 1, MOST_WORKERS)
    )
