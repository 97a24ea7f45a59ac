"""Which groups make a step when more are begun than it needs, and what becomes of the others."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from rljob_api.spec.algorithm import TrainSpec
from rljob_trainer.buffer.assembly import Outcome
from rljob_trainer.buffer.generation import Generator
from rljob_trainer.data.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Begun:
    """A group in the making."""

    policy: int
    """Step of the policy that it was begun under: none of its tokens is of an older one."""
    task: asyncio.Task[list[Outcome]]


def chosen(complete: Collection[int], due: Collection[int], count: int) -> list[int] | None:
    """The `count` groups of a step, by position: all that are due and the first of the others. None while there are too few complete ones."""
    if len(complete) < count or not set(due) <= set(complete):
        return None
    others = sorted(set(complete) - set(due))
    return sorted([*due, *others[: count - len(due)]])


class Groups:
    """Groups in the making, by the position of their prompt in the data.

    With `partialRollouts` those that a step leaves over go on in the next one, under its policy; else they are dropped. A step waits for
    groups that would be too old for the next. They fit into it: at most twice what a step needs is begun, so that it leaves over no more than
    it takes.
    """

    def __init__(self, train: TrainSpec, generator: Generator):
        self._train, self._generator = train, generator
        self._begun: dict[int, Begun] = {}
        self._complete: set[int] = set()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    async def draw(self, step: int, policy: int, prompts: Mapping[int, Prompt]) -> dict[int, list[Outcome]]:
        """The promptsPerStep groups of `step`, in the order of the data, of `prompts` by their positions.

        Drawn while the rollouts serve `policy`. Raises what a group raised.
        """
        self._generator.go_on()  # before new ones are begun: what was kept is generated first
        for position, prompt in prompts.items():
            if position not in self._begun:
                self._begin(step, policy, position, prompt)
        due = [p for p, group in self._begun.items() if self._is_due(group, step)]
        try:
            while (found := self._chosen(due)) is None:
                self._changed.clear()
                await self._changed.wait()
            return {position: self._take(position) for position in found}
        finally:
            await self._leave(step)

    def _begin(self, step: int, policy: int, position: int, prompt: Prompt) -> None:
        task = asyncio.create_task(self._generator.group(step, position, prompt))
        task.add_done_callback(partial(self._ended, position))
        self._begun[position] = Begun(policy, task)

    def _ended(self, position: int, task: asyncio.Task[list[Outcome]]) -> None:
        if task.cancelled():
            return
        self._failure = self._failure or task.exception()
        self._complete.add(position)
        self._changed.set()

    def _is_due(self, group: Begun, step: int) -> bool:
        """In the next step its tokens might be older than they may be."""
        kept = self._train.partial_rollouts
        return kept is not None and step - 1 - group.policy >= kept.max_age

    def _chosen(self, due: Collection[int]) -> list[int] | None:
        if self._failure:
            raise self._failure
        return chosen(self._complete, due, self._train.prompts_per_step)

    def _take(self, position: int) -> list[Outcome]:
        self._complete.remove(position)
        return self._begun.pop(position).task.result()

    async def _leave(self, step: int) -> None:
        """What the step left over waits for the next one, or ends here."""
        if self._train.partial_rollouts and step < self._train.steps:
            await self._generator.interrupt()
        else:
            await self._drop()

    async def _drop(self) -> None:
        tasks = [group.task for group in self._begun.values()]
        self._begun, self._complete = {}, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
