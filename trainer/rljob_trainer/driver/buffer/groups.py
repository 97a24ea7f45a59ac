"""The groups in generation, from their first request until a batch has them; kept across steps, or dropped at the end of one."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.buffer.partial_sample import PartialSample


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """The samples of one prompt, complete or not."""

    position: int
    """Position of its prompt in the data."""
    step: int
    """Step in whose generation it was begun."""
    policy: int
    """Step of the policy under which it was begun, the oldest that any of its tokens can be from."""
    samples: tuple[PartialSample, ...]
    """Its samples; filled only where weight updates may interrupt them."""


class Groups:
    """All groups in generation, by the position of their prompt in the data.

    Where the spec keeps groups (staleness, partial rollouts), those that a step leaves over continue in the next one; else they are dropped. What a
    step leaves over can always be trained before it is too old (Selection.choose): with `staleness` no more groups are begun than the following
    steps need, and with `partialRollouts` at most twice as many as one step needs.
    """

    def __init__(self, spec: RLJobSpec, generator: Generator):
        self._spec, self._generator = spec, generator
        self._groups: dict[int, PromptGroup] = {}
        self._tasks: dict[int, asyncio.Task[list[Outcome]]] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def resume(self) -> None:
        """Continue the groups that were kept."""
        self._generator.resume()

    def begin(self, step: int, policy: int, prompts: Mapping[int, Prompt]) -> None:
        """Begin a group for each of these prompts (by position) that has none yet. The rollouts serve `policy`."""
        samples = range(self._spec.train.samples_per_prompt)
        for position in sorted(prompts.keys() - self._groups.keys()):
            self._add(PromptGroup(position, step, policy, tuple(PartialSample() for _ in samples)), prompts[position])

    def restore(self, groups: Iterable[PromptGroup], prompts: Mapping[int, Prompt]) -> None:
        """Continue groups of an earlier attempt."""
        for group in groups:
            self._add(group, prompts[group.position])

    @property
    def kept(self) -> list[PromptGroup]:
        """A copy of every group as far as it has been generated, for a checkpoint. Empty where groups are not kept."""
        return [self._kept(self._groups[p]) for p in self.positions] if self._spec.keeps_groups else []

    @property
    def complete(self) -> dict[int, list[Outcome]]:
        """The samples of every complete group. Raises what a group raised."""
        if self._failure:
            raise self._failure
        return {position: self._tasks[position].result() for position in self.positions if self._tasks[position].done()}

    @property
    def positions(self) -> list[int]:
        """Positions of all groups, ascending."""
        return sorted(self._groups)

    def waits(self, step: int) -> dict[int, int]:
        """[position] -> steps after `step` that the group may still wait before it is too old to be trained. Empty where groups are not kept."""
        if not self._spec.keeps_groups:
            return {}
        return {p: group.policy + self._spec.max_age - (step - 1) for p, group in self._groups.items()}

    async def changed(self) -> None:
        """Wait until another group is complete, or has failed."""
        self._changed.clear()
        await self._changed.wait()

    def remove(self, positions: Collection[int]) -> None:
        """Forget complete groups, which a batch now has or which were rejected."""
        for position in positions:
            self._groups.pop(position, None)
            self._tasks.pop(position, None)

    async def leave(self, step: int) -> None:
        """The step is full. Groups that it leaves over continue, pause until the next policy, or are dropped."""
        if not self._spec.keeps_groups or step == self._spec.train.total_steps:
            await self._drop()
        elif not self._spec.generates_on:
            await self._generator.interrupt()

    async def stop(self) -> None:
        """Stop generating under this policy."""
        if self._spec.keeps_groups:
            await self._generator.interrupt()
        else:
            await self._drop()

    def _kept(self, group: PromptGroup) -> PromptGroup:
        """A copy, since generation continues to write to the samples."""
        task = self._tasks[group.position]
        done = task.done() and not task.exception()
        return replace(
            group,
            samples=tuple(PartialSample(outcome=o) for o in task.result()) if done else tuple(map(copy, group.samples)),
        )

    def _add(self, group: PromptGroup, prompt: Prompt) -> None:
        whole = [sample.outcome for sample in group.samples if sample.outcome]
        is_complete = len(whole) == len(group.samples)
        generate = self._generator.group
        task = asyncio.create_task(
            _of(whole) if is_complete else generate(group.step, group.position, prompt, group.samples)
        )
        task.add_done_callback(self._ended)
        self._groups[group.position], self._tasks[group.position] = group, task

    async def _drop(self) -> None:
        tasks = [*self._tasks.values()]
        self._groups, self._tasks = {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[list[Outcome]]) -> None:
        if task.cancelled():
            return
        self._failure = self._failure or task.exception()
        self._changed.set()


async def _of(outcomes: list[Outcome]) -> list[Outcome]:
    return outcomes
