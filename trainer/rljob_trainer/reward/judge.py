"""Judges by data source: the entries of spec.rewards, weighted and summed. A failed entry fails the sample, it is never a silent 0."""

import asyncio
import os
from collections.abc import Iterable
from typing import Protocol

from rljob_api.spec.model import RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reward.case import Case
from rljob_trainer.reward.python_file import PythonFile
from rljob_trainer.reward.rules import RULES

EVERY_OTHER = "*"
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

    def __init__(self, rewards: Iterable[RewardSpec]):
        self._entries = [(spec, _scorer(i, spec)) for i, spec in enumerate(rewards)]

    async def start(self) -> None:
        """Start the processes. Raises ConfigurationError for a reward file that cannot be imported or lacks its function."""
        await asyncio.gather(*(scorer.start() for _, scorer in self._entries))

    async def stop(self) -> None:
        await asyncio.gather(*(scorer.stop() for _, scorer in self._entries))

    def require(self, data_sources: Iterable[str]) -> None:
        """Raises ConfigurationError for a data source that nobody judges."""
        for source in sorted(data_sources):
            if not self._of(source):
                rule = f"no entry judges the data source {source!r} of spec.data"
                raise ConfigurationError(
                    "spec.rewards", source, rule, f"add an entry with dataSource {source!r} or '*'"
                )

    async def score(self, data_source: str, case: Case) -> float:
        """The weighted sum. Raises RewardFailed when any part fails."""
        parts = await asyncio.gather(*(_weighted(spec, scorer, case) for spec, scorer in self._of(data_source)))
        return sum(parts)

    def _of(self, data_source: str) -> list[tuple[RewardSpec, Scorer]]:
        named = [e for e in self._entries if e[0].data_source == data_source]
        return named or [e for e in self._entries if e[0].data_source == EVERY_OTHER]


async def _weighted(spec: RewardSpec, scorer: Scorer, case: Case) -> float:
    return spec.weight * await scorer.score(case)


def _scorer(index: int, spec: RewardSpec) -> Scorer:
    if spec.python is None:
        assert spec.rule is not None, "the spec was checked: exactly one of rule and python"
        return Rule(spec.rule)
    return PythonFile(
        f"spec.rewards[{index}].python.path", spec.python, spec.timeout_seconds, min(os.cpu_count() or 1, MOST_WORKERS)
    )
