"""Several policies ahead: which groups each step trains, and how old they are, with a generator that only takes time and policies that come at random
moments."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.order import Cursor, permutation
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.driver.buffer.buffer import RolloutBuffer
from rljob_trainer.driver.buffer.selection import fit_later
from rljob_trainer.driver.buffer.sources import GeneratedBatches, Ready
from rljob_trainer.driver.slots import WOKEN_AT_ONCE, Priority, PriorityEvent
from trainer.driver.buffer.specs import job
from trainer.driver.buffer.test_groups import CORRECTION, PROMPTS, SAMPLES, STEPS, WANTED, Generator, Rollouts, Texts


def spec_of(root: Path, staleness: int, interrupt: str = "continue", dynamic: bool = False) -> RLJobSpec:
    return job(
        WANTED,
        SAMPLES,
        train={"steps": STEPS, "staleness": staleness},
        algorithm=CORRECTION | ({"dynamicSampling": {"maxRounds": 9}} if dynamic else {}),
        checkpoint={"path": str(root)},
        rollout={"interrupt": interrupt},
    )


class Loop:
    """A trainer that takes batches as they come, and trains for a random number of turns of the event loop."""

    def __init__(self, spec: RLJobSpec, seed: int):
        self._spec, self._chance, self._generator = spec, random.Random(seed), Generator(seed)
        prompts = PromptSet(Prompt(i, (i + 10,), str(i), "", "") for i in range(PROMPTS))
        no = PromptSet([])
        self.source = GeneratedBatches(spec, prompts, no, Texts(), self._generator, Rollouts(), lambda phase: None)

    async def run(self) -> list[Ready]:
        changed = asyncio.Event()

        async def until(found: Callable[[], Any]) -> Any:
            while not (value := found()):
                changed.clear()
                await asyncio.wait_for(changed.wait(), 120)
            return value

        buffer = RolloutBuffer(self._spec, self.source, self._evaluate, changed.set, 0, Cursor())
        buffer.begin(0)
        found: list[Ready] = []
        for step in range(1, STEPS + 1):
            found.append(await until(buffer.take))
            for _ in range(self._chance.choice([0, 0, 2, 10, 60])):
                await asyncio.sleep(0)
            await until(lambda: buffer.may_stop)
            await (buffer.leave() if self._spec.keeps_requests else buffer.stop())
            for _ in range(self._chance.choice([0, 5])):
                await asyncio.sleep(0)
            self._generator.policy = step
            buffer.begin(step)
        await buffer.stop()
        return found

    async def _evaluate(self, policy: int) -> None: ...


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("staleness", [1, 2, 5])
@pytest.mark.parametrize("interrupt", ["continue", "keep"])
async def test_every_prompt_is_trained_once_and_no_trajectory_begins_too_early(
    tmp_path: Path, interrupt: str, staleness: int, seed: int
) -> None:
    found = await Loop(spec_of(tmp_path, staleness, interrupt), seed).run()
    for ready in found:
        begun = [s.sampled_segments[0].policy_step for s in ready.batch.samples]
        assert min(begun) >= ready.batch.step - 1 - staleness
        ages = [ready.batch.step - 1 - b for b in begun]
        assert ready.batch.metrics["train_rollout/begun_age"] == pytest.approx(sum(ages) / len(ages))
    used = Counter((s.prompt_index, s.sample) for r in found for s in r.batch.samples)
    assert used == Counter((p, i) for p in permutation(PROMPTS, 0, 0)[: STEPS * WANTED] for i in range(SAMPLES))
    assert found[-1].cursor == Cursor(STEPS * WANTED), "nothing is begun that is not trained"


@pytest.mark.parametrize("seed", range(6))
async def test_with_continue_and_dynamic_sampling_no_prompt_is_trained_twice(tmp_path: Path, seed: int) -> None:
    found = await Loop(spec_of(tmp_path, 2, dynamic=True), seed).run()
    for ready in found:
        assert all(s.prompt_index % 3 for s in ready.batch.samples), "equal rewards teach nothing"
        oldest = min(s.sampled_segments[0].policy_step for s in ready.batch.samples)
        assert oldest >= ready.batch.step - 3
    used = Counter(s.prompt_index for r in found for s in r.batch.samples)
    assert max(used.values()) <= SAMPLES * -(-found[-1].cursor.consumed // PROMPTS)


@pytest.mark.parametrize("staleness", [1, 3])
async def test_with_wait_a_batch_has_one_policy_whatever_the_timing(tmp_path: Path, staleness: int) -> None:
    runs = [await Loop(spec_of(tmp_path, staleness, "wait"), seed).run() for seed in (0, 1)]
    for ready in chain(*runs):
        policies = {segment.policy_step for s in ready.batch.samples for segment in s.sampled_segments}
        assert policies == {max(0, ready.batch.step - 1 - staleness)}
    assert [r.batch.columns for r in runs[0]] == [r.batch.columns for r in runs[1]]


@pytest.mark.parametrize("placement", ["separate", "colocated"])
async def test_a_batch_of_servers_that_will_sleep_waits_for_the_evaluation(tmp_path: Path, placement: str) -> None:
    spec = job(WANTED, SAMPLES, rollout={"placement": placement}, checkpoint={"path": str(tmp_path)})
    loop, evaluated, changed = Loop(spec, 0), asyncio.Event(), asyncio.Event()

    async def evaluate(policy: int) -> None:
        await evaluated.wait()

    async def until(found: Callable[[], Any]) -> None:
        while not found():
            changed.clear()
            await asyncio.wait_for(changed.wait(), 120)

    buffer = RolloutBuffer(spec, loop.source, evaluate, changed.set, 0, Cursor())
    buffer.begin(0)
    await until(lambda: buffer.contents.batches)
    assert (buffer.take() is None) == (placement == "colocated")
    assert not buffer.is_measuring, "a server that comes back meanwhile gets the policy"
    evaluated.set()
    await until(lambda: buffer.is_idle)
    assert (buffer.take() is None) == (placement == "separate"), "it is taken once"
    await buffer.stop()


@pytest.mark.parametrize(
    ("waits", "fit"),
    [([], True), ([0], False), ([1, 1], True), ([1, 1, 1], False), ([1, 1, 2, 2], True), ([2, 2, 2, 2, 2], False)],
)
def test_what_is_left_over_fits_into_the_steps_before_it_is_too_old(waits: list[int], fit: Any) -> None:
    assert fit_later(waits, 2) is fit


def test_the_choice_leaves_nothing_over_that_would_be_too_old() -> None:
    """Against all ways to fill the steps that follow."""
    chance = random.Random(0)
    for _ in range(300):
        waits = [chance.randint(0, 3) for _ in range(chance.randint(0, 7))]
        room = [2] * 4  # of step + 1 ...
        possible = True
        for wait in sorted(waits):
            slot = next((i for i in range(wait) if room[i]), None)
            possible = possible and slot is not None
            if slot is not None:
                room[slot] -= 1
        assert fit_later(waits, 2) is possible


async def test_what_began_first_continues_first() -> None:
    """Also what was interrupted again before it could."""
    event, passed = PriorityEvent(), list[Priority]()

    async def wait(priority: Priority) -> None:
        await event.wait(priority)
        passed.append(priority)

    priorities = [(7, 0), (3, 1), (5, 0), (3, 0)]
    tasks = [asyncio.create_task(wait(priority)) for priority in priorities]
    await asyncio.sleep(0)
    event.set()
    event.clear()
    await asyncio.sleep(0)
    assert not passed
    tasks.append(asyncio.create_task(wait((1, 0))))
    await asyncio.sleep(0)
    tasks[2].cancel()
    event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == [(1, 0), (3, 0), (3, 1), (7, 0)]


async def test_many_waiters_are_woken_in_order_over_several_turns_of_the_loop() -> None:
    event, passed = PriorityEvent(), list[int]()

    async def wait(number: int) -> None:
        await event.wait((number, 0))
        passed.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in reversed(range(300))]
    await asyncio.sleep(0)
    event.set()
    turns = [0]
    while len(passed) < 300:
        await asyncio.sleep(0)
        turns.append(len(passed))
    assert passed == list(range(300))
    assert max(b - a for a, b in pairwise(turns)) <= WOKEN_AT_ONCE
    await asyncio.gather(*tasks)
