"""Which prompts a step uses, over many steps, whatever policies of selection are combined and in whatever order groups are complete: with a
generator that only takes time."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.data.order import Cursor
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.sources import GeneratedBatches, Ready
from rljob_trainer.driver.replicas import Served
from rljob_trainer.wire.trajectory import Trajectory, sampled
from trainer.driver.buffer.specs import job

PROMPTS, STEPS, WANTED, SAMPLES = 40, 8, 4, 2
CORRECTION = {"rolloutCorrection": {"importanceSampling": "token"}}


class Generator:
    """A group takes a random number of turns of the event loop, in which only the current policy writes; the prompt decides the rewards."""

    def __init__(self, seed: int):
        self._chance, self.policy = random.Random(seed), 0
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        self._resumed.set()

    async def interrupt(self) -> None:
        self._resumed.clear()

    async def group(self, step: int, position: int, prompt: Prompt, samples: Any) -> list[Outcome]:
        begun = self.policy
        for _ in range(self._chance.choice([0, 1, 3, 20])):
            await asyncio.sleep(0)
            await self._resumed.wait()
        return [Outcome(position, i, self._sample(position, i, prompt, begun)) for i in range(SAMPLES)]

    def _sample(self, position: int, index: int, prompt: Prompt, begun: int) -> Trajectory:
        fields = {"prompt_index": prompt.index, "group": position, "sample": index, "finish_reason": "stop"}
        reward = float(prompt.index % 3 == 0 or index)
        made = Trajectory.of_response(prompt.tokens, (1,), (-0.5,), begun, reward=reward, data_source="", **fields)
        last = sampled((2,), (-0.5,), self.policy)
        return (
            made
            if begun == self.policy
            else Trajectory((*made.segments, last), reward=reward, data_source="", **fields)
        )


class Rollouts:
    """Always enough."""

    redispatched, served = 0, Served()

    async def enough(self) -> None: ...


class Texts:
    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return ""


async def run(root: Path, seed: int, **train: Any) -> list[Ready]:
    """All steps of a job."""
    dynamic = train.pop("dynamic", None)
    algorithm = CORRECTION | ({"dynamicSampling": {"maxRounds": 9}} if dynamic else {})
    spec = job(WANTED, SAMPLES, train=train | {"steps": STEPS}, algorithm=algorithm, checkpoint={"path": str(root)})
    prompts = PromptSet(Prompt(i, (i + 10,), str(i), "", "") for i in range(PROMPTS))
    generator = Generator(seed)
    source = GeneratedBatches(spec, prompts, PromptSet([]), Texts(), generator, Rollouts(), lambda phase: None)
    found, cursor = [], Cursor()
    for step in range(1, STEPS + 1):
        generator.policy = step - 1
        found.append(await asyncio.wait_for(source.batch(step, step - 1, cursor), 120))
        cursor = found[-1].cursor
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("over", "partial"),
    [
        (1, None),
        *((over, partial) for over in (1.25, 2) for partial in (None, {"maxAge": 1}, {"maxAge": 3})),
    ],
)
async def test_no_prompt_is_trained_twice_in_an_epoch_and_none_is_lost(
    tmp_path: Path, seed: int, over: float, dynamic: bool, partial: dict[str, int] | None
) -> None:
    train = {"partialRollouts": partial} if partial else {}
    found = await run(tmp_path, seed, overSampling=over, dynamic=dynamic, **train)
    used: Counter[int] = Counter()
    for step, ready in enumerate(found, 1):
        samples = ready.batch.samples
        assert [(s.group, s.sample) for s in samples] == [(g, i) for g in range(WANTED) for i in range(SAMPLES)]
        assert all(s.prompt_index == samples[s.group * SAMPLES].prompt_index for s in samples)
        assert min(part.policy_step for s in samples for part in s.sampled_segments) >= step - 1 - (partial or {}).get(
            "maxAge", 0
        )
        assert not dynamic or all(s.prompt_index % 3 for s in samples), (
            "what is the same for all samples teaches nothing"
        )
        used.update(samples[g * SAMPLES].prompt_index for g in range(WANTED))
    last = found[-1].cursor
    assert len(set(last.pending)) == len(last.pending) <= WANTED
    assert max(used.values()) <= -(-last.consumed // PROMPTS), "at most once per epoch"
    if not dynamic and (partial or over == 1):
        assert used.total() + len(last.pending) == last.consumed, "every prompt was trained, or waits"


async def test_without_over_sampling_the_choice_does_not_depend_on_what_is_complete_first(tmp_path: Path) -> None:
    one, other = [await run(tmp_path, seed, dynamic=True) for seed in (0, 1)]
    assert [r.batch.columns for r in one] == [r.batch.columns for r in other]
    assert [r.batch.metrics["sampling/kept"] for r in one] == [r.batch.metrics["sampling/kept"] for r in other]
    assert one[-1].cursor == other[-1].cursor
