"""The groups that are being generated: begun, complete, taken; kept for the next step, or dropped."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace

from rljob_api.spec import RLJobSpec
from rljob_trainer.buffer.assembly import Outcome
from rljob_trainer.buffer.generation import Generator
from rljob_trainer.buffer.partial_sample import PartialSample
from rljob_trainer.data.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt, wherever they are."""

    position: int
    """Of its prompt in the data."""
    step: int
    """In which it was begun."""
    policy: int
    """Step of the policy under which it was begun: none of its tokens is of an older one."""
    samples: tuple[PartialSample, ...]
    """Its samples, where they are generated in pieces."""


class Groups:
    """By the position of their prompt in the data.

    Where the spec keeps groups, those that a step leaves over continue in the next one, under its policy; else they are dropped. A step leaves over
    no more than the following ones can take before it is too old (Selection.choose): of `staleness` because no more are begun than these steps
    need, of `partialRollouts` because at most twice what a step needs is under way.
    """

    def __init__(self, spec: RLJobSpec, generator: Generator):
        self._spec, self._generator = spec, generator
        self._groups: dict[int, Group] = {}
        self._tasks: dict[int, asyncio.Task[list[Outcome]]] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def resume(self) -> None:
        """Generate what was kept, before new groups are begun."""
        self._generator.resume()

    def begin(self, step: int, policy: int, prompts: Mapping[int, Prompt]) -> None:
        """Those of these prompts, by their positions, that have not been begun; the rollouts serve `policy`."""
        samples = range(self._spec.train.samples_per_prompt)
        for position in sorted(prompts.keys() - self._groups.keys()):
            self._add(Group(position, step, policy, tuple(PartialSample() for _ in samples)), prompts[position])

    def restore(self, groups: Iterable[Group], prompts: Mapping[int, Prompt]) -> None:
        """Those of an earlier attempt, which continue where they were."""
        for group in groups:
            self._add(group, prompts[group.position])

    @property
    def kept(self) -> list[Group]:
        """What there is now of every group, for a checkpoint, if groups are kept at all."""
        return [self._kept(self._groups[p]) for p in self.positions] if self._spec.keeps_groups else []

    @property
    def complete(self) -> dict[int, list[Outcome]]:
        """The samples of every complete group. Raises what a group raised."""
        if self._failure:
            raise self._failure
        return {position: self._tasks[position].result() for position in self.positions if self._tasks[position].done()}

    @property
    def positions(self) -> list[int]:
        """Of all groups, in the order of the data."""
        return sorted(self._groups)

    def waits(self, step: int) -> dict[int, int]:
        """For how many steps after `step` each group may wait before it is too old; empty when nothing is kept."""
        if not self._spec.keeps_groups:
            return {}
        return {p: group.policy + self._spec.max_age - (step - 1) for p, group in self._groups.items()}

    async def changed(self) -> None:
        """Returns once another group is complete, or has failed."""
        self._changed.clear()
        await self._changed.wait()

    def remove(self, positions: Collection[int]) -> None:
        """Complete ones, which have been used."""
        for position in positions:
            self._groups.pop(position, None)
            self._tasks.pop(position, None)

    async def leave(self, step: int) -> None:
        """The step is full: what it leaves over continues, waits for the next policy, or ends here."""
        if not self._spec.keeps_groups or step == self._spec.train.total_steps:
            await self._drop()
        elif not self._spec.generates_on:
            await self._generator.interrupt()

    async def stop(self) -> None:
        """Nothing is generated under this policy any more."""
        if self._spec.keeps_groups:
            await self._generator.interrupt()
        else:
            await self._drop()

    def _kept(self, group: Group) -> Group:
        """Drafts are written to while others read the copy."""
        task = self._tasks[group.position]
        done = task.done() and not task.exception()
        return replace(
            group,
            samples=tuple(PartialSample(outcome=o) for o in task.result()) if done else tuple(map(copy, group.samples)),
        )

    def _add(self, group: Group, prompt: Prompt) -> None:
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
