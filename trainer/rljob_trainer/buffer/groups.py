"""The groups that are being generated: begun, complete, taken; kept for the next step, or dropped."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from rljob_api.spec.algorithm import TrainSpec
from rljob_trainer.buffer.assembly import Outcome
from rljob_trainer.buffer.generation import Generator
from rljob_trainer.data.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt, complete once `task` is done."""

    policy: int
    """Step of the policy under which it was begun: none of its tokens is of an older one."""
    task: asyncio.Task[list[Outcome]]


class Groups:
    """By the position of their prompt in the data.

    With `partialRollouts` those that a step leaves over continue in the next one, under its policy; else they are dropped. A step waits for
    groups that would be too old for the next. They fit into it: at most twice what a step needs is under way, so that it leaves over no more
    than it takes.
    """

    def __init__(self, train: TrainSpec, generator: Generator):
        self._train, self._generator = train, generator
        self._groups: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def resume(self) -> None:
        """Generate what was kept, before new groups are begun."""
        self._generator.resume()

    def begin(self, step: int, policy: int, prompts: Mapping[int, Prompt]) -> None:
        """Those of these prompts, by their positions, that have not been begun; the rollouts serve `policy`."""
        for position in sorted(prompts.keys() - self._groups.keys()):
            task = asyncio.create_task(self._generator.group(step, position, prompts[position]))
            task.add_done_callback(partial(self._ended, position))
            self._groups[position] = Group(policy, task)

    @property
    def complete(self) -> dict[int, list[Outcome]]:
        """The samples of every complete group. Raises what a group raised."""
        if self._failure:
            raise self._failure
        return {
            position: self._groups[position].task.result() for position in self.positions if self._is_complete(position)
        }

    @property
    def positions(self) -> list[int]:
        """Of all groups, in the order of the data."""
        return sorted(self._groups)

    def due(self, step: int) -> list[int]:
        """Positions of those whose tokens might be older than they may be in the step after `step`."""
        kept = self._train.partial_rollouts
        return [p for p, group in self._groups.items() if kept and step - 1 - group.policy >= kept.max_age]

    async def changed(self) -> None:
        """Returns once another group is complete, or has failed."""
        self._changed.clear()
        await self._changed.wait()

    def remove(self, positions: Collection[int]) -> None:
        """Complete ones, which have been used."""
        for position in positions:
            del self._groups[position]

    async def leave(self, step: int) -> None:
        """The step is made, or given up: what it leaves over waits for the next one, or ends here."""
        if self._train.partial_rollouts and step < self._train.total_steps:
            await self._generator.interrupt()
        else:
            await self._drop()

    async def _drop(self) -> None:
        tasks = [group.task for group in self._groups.values()]
        self._groups = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_complete(self, position: int) -> bool:
        return self._groups[position].task.done()

    def _ended(self, position: int, task: asyncio.Task[list[Outcome]]) -> None:
        if task.cancelled():
            return
        self._failure = self._failure or task.exception()
        self._changed.set()
