"""The rollout buffer in a checkpoint: what comes back, and what is left out because it may not be trained any more."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.recording import AgentFailed
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver.buffer import saved
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.groups import PromptGroup
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.driver.buffer.saved import BufferContents
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Segment, Trajectory, environment, same_bits, sampled
from trainer.driver.buffer.specs import job


def spec_of(staleness: int = 3, interrupt: str = "continue", **changes: Any) -> RLJobSpec:
    """Of 2 prompts a step."""
    train = {"steps": 20, "staleness": staleness}
    algorithm = {"rolloutCorrection": {"importanceSampling": "token"}}
    return job(train=train, algorithm=algorithm, rollout={"interrupt": interrupt}, **changes)


def sample(group: int, index: int, policy: int, reward: float = 0.5) -> Trajectory:
    fields = {"prompt_index": group, "group": group, "sample": index, "finish_reason": "stop"}
    return Trajectory.of_response((1, 2), (3, 4), (-0.5, -0.25), policy, reward=reward, data_source="sum", **fields)


def ready(step: int, policy: int) -> Ready:
    samples = [sample(g, i, policy) for g in range(2) for i in range(2)]
    return Ready(Batch.of(step, samples, {"reward/mean": 0.5}), Cursor(2 * step + 1, (2 * step - 1,)))


def group(position: int, policy: int) -> PromptGroup:
    """One sample is scored, one is not complete."""
    outcome = Outcome(position, 0, sample(position, 0, policy), {"length": 2.0}, "4", {"agent/turns": 2.0})
    return PromptGroup(
        position, policy + 1, policy, (PartialSample(outcome=outcome), PartialSample((sampled((9,), (-1.5,), policy),)))
    )


def of_an_agent() -> Trajectory:
    """With a turn that earned something, and a branch."""
    begin = Segment(np.array([1], np.int32), "prompt")
    turn = Segment(np.array([5], np.int32), "policy", np.array([-1.5], np.float32), 5, reward=0.25)
    branch = (begin, environment([6]), sampled((7,), (-0.5,), 5))
    return replace(sample(15, 0, 5), segments=(begin, turn, sampled((8,), (-2.0,), 5)), branches=(branch,))


def test_everything_comes_back_bit_by_bit(tmp_path: Path) -> None:
    failed = PartialSample(outcome=Outcome(13, 0, RewardFailed("timeout", "spec.rewards[0]", "/r.py", "took long")))
    empty, whole = (
        PartialSample(),
        PartialSample((sampled((5, 6), (-0.5, -2.0), 4), sampled((7,), (-3.0,), 5)), "length"),
    )
    lost = PartialSample(
        outcome=Outcome(13, 1, AgentFailed("none", "spec.rollout.agent.python.path", "/a.py", "returned None"))
    )
    branched = PartialSample(outcome=Outcome(15, 0, of_an_agent()))
    groups = [group(12, 5), PromptGroup(13, 6, 5, (failed, lost)), PromptGroup(14, 7, 6, (whole, empty))]
    groups.append(PromptGroup(15, 7, 6, (branched, empty)))
    saved.write(tmp_path / "buffer", BufferContents([ready(7, 4), ready(8, 5)], groups), spec_of())
    found = saved.read(tmp_path / "buffer", spec_of(), 6)
    for before, after in zip([ready(7, 4), ready(8, 5)], found.batches, strict=True):
        assert after.cursor == before.cursor and after.batch.columns == before.batch.columns
        assert after.batch.samples == before.batch.samples and after.batch.metrics == before.batch.metrics
    assert found.groups[0] == groups[0] and list(found.groups[2:]) == groups[2:]
    for after, before in zip(found.groups[1].samples, (failed, lost), strict=True):
        assert after.outcome and before.outcome
        assert str(after.outcome.result) == str(before.outcome.result)
        assert type(after.outcome.result) is type(before.outcome.result)
        assert (after.outcome.group, after.outcome.sample) == (13, before.outcome.sample)


def test_an_empty_buffer_leaves_nothing_behind_and_comes_back_empty(tmp_path: Path) -> None:
    saved.write(tmp_path / "buffer", BufferContents(), spec_of())
    assert not (tmp_path / "buffer").exists()
    assert saved.read(tmp_path / "buffer", spec_of(), 0) == BufferContents()


@pytest.mark.parametrize(
    "changes", [{"rewards": [{"rule": "number"}]}, {"rollout": {"interrupt": "continue", "sampling": {"maxTokens": 7}}}]
)
def test_what_was_made_with_other_settings_is_generated_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved.write(tmp_path / "buffer", BufferContents([ready(7, 4)], [group(12, 5)]), spec_of())
    other = RLJobSpec.model_validate(spec_of().model_dump(by_alias=True, exclude_defaults=True) | changes)
    assert saved.read(tmp_path / "buffer", other, 6) == BufferContents()


def routed_spec(replay: str = "rollout") -> RLJobSpec:
    correction = {"importanceSampling": "token", "routerReplay": replay}
    return job(
        train={"steps": 20, "staleness": 3},
        algorithm={"rolloutCorrection": correction},
        rollout={"interrupt": "continue"},
    )


@pytest.mark.parametrize("kind", [np.uint8, np.int16])
def test_the_experts_of_what_is_complete_come_back_and_without_them_it_is_generated_again(
    tmp_path: Path, kind: type[np.integer]
) -> None:
    experts = np.arange(24, dtype=kind).reshape(3, 4, 2) * (1 if kind is np.uint8 else 15)
    scored = PartialSample(outcome=Outcome(12, 0, replace(sample(12, 0, 5), routed_experts=experts)))
    whole = PartialSample((sampled((3, 4), (-0.5, -2.0), 5),), "stop", routed_experts=experts + 1)
    begun = PartialSample((sampled((3,), (-0.5,), 5),))
    contents = BufferContents([ready(7, 4)], [PromptGroup(12, 6, 5, (scored, whole, begun))])
    saved.write(tmp_path / "buffer", contents, routed_spec())
    (found,) = saved.read(tmp_path / "buffer", routed_spec(), 6).groups
    assert found.samples[0].outcome and isinstance(found.samples[0].outcome.result, Trajectory)
    assert same_bits(found.samples[0].outcome.result.routed_experts, experts)
    assert same_bits(found.samples[1].routed_experts, experts + 1) and found.samples[2].routed_experts is None
    assert saved.read(tmp_path / "buffer", routed_spec("none"), 6) == BufferContents()


def test_what_would_be_too_old_by_now_is_left_out() -> None:
    contents = BufferContents([ready(7, 4), ready(8, 5)], [group(12, 5), group(13, 5), group(14, 5), group(15, 6)])

    def steps_and_positions(step: int = 6, **changes: Any) -> tuple[list[int], list[int]]:
        found = saved.usable(contents, spec_of(**changes), step)
        return [r.batch.step for r in found.batches], [g.position for g in found.groups]

    assert steps_and_positions() == ([7, 8], [12, 13, 15]), "the third of policy 5 would be trained in step 10"
    assert steps_and_positions(staleness=4) == ([7, 8], [12, 13, 14, 15])
    assert steps_and_positions(staleness=2) == ([7, 8], [15])
    assert steps_and_positions(staleness=1) == ([], [12, 13, 15]), "policy 4 is too old for step 7"
    assert steps_and_positions(interrupt="wait") == ([7, 8], []), "no response continues under another policy"
    assert steps_and_positions(step=7) == ([], [12, 13, 14, 15]), "batches of other steps are none"
