"""What trainer and rollouts say of the same tokens. With real servers: tests/trainer/server/test_publish.py."""

import json
import math
from dataclasses import replace

import pytest

from api.specs import make_spec
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.parity import (
    FIRST_STEPS,
    PROBE_SEQUENCES,
    PROBE_TOKENS,
    Compared,
    MismatchError,
    Probe,
    RunLimit,
    arithmetic_of,
    probe_sample,
    probe_sequences,
)
from rljob_trainer.wire.trajectory import Trajectory, prompt, sampled


def by(mean: float) -> Compared:
    return Compared(mean, 0.5, 100, {"trainer": 0, "rollouts": 0})


def make_sample(prompt: tuple[int, ...], response: tuple[int, ...]) -> Trajectory:
    fields = {"prompt_index": 0, "group": 0, "sample": 0, "finish_reason": "stop", "reward": 1.0, "data_source": "test"}
    return Trajectory.of_response(prompt, response, (0.0,) * len(response), 0, **fields)


def test_a_probe_says_how_far_apart_they_are() -> None:
    probe = Probe(((1, 2, 3), (4, 5)), ((-1.0, -2.0), (-3.0,)), "float32")
    assert probe.compare([[-1.0, -2.003], [-3.0]]) == pytest.approx((0.001, 0.003))


def test_a_mean_above_the_limit_of_the_type_is_a_mismatch() -> None:
    probe = Probe(((1, 2),), ((-1.0,),), "float32")
    with pytest.raises(
        MismatchError,
        match=r"differ by 0.1 per token on average \(at most 0.1\); 0.01 is the limit for float32 rollouts",
    ):
        probe.compare([[-1.1]])
    assert replace(probe, arithmetic="bfloat16").compare([[-1.1]])


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (-1.0, math.nan, "of 1 tokens, 1 from the rollouts have a log-probability that is NaN or infinite"),
        (math.nan, -1.0, "of 1 tokens, 1 from the trainer have a log-probability that is NaN or infinite"),
        (-math.inf, math.nan, "of 1 tokens, 1 from the trainer and 1 from the rollouts have"),
    ],
)
def test_a_side_that_says_no_number_is_named(ours: float, theirs: float, said: str) -> None:
    with pytest.raises(MismatchError, match=said):
        Probe(((1, 2),), ((ours,),), "float32").compare([[theirs]])


def test_a_run_that_was_close_in_its_first_steps_has_to_stay_close() -> None:
    """A wrong bias in a router showed as 0.059, where 0.003 is right: far below the limit for every run."""
    run = RunLimit("bfloat16")
    for step in range(FIRST_STEPS):
        run.require(
            by(0.003 if step % 2 else 0.19), update=0
        )  # the limit of all runs holds until there are enough steps
    with pytest.raises(MismatchError, match="0.2 is the limit for bfloat16 rollouts"):
        run.require(by(0.21), update=0)
    run = RunLimit("bfloat16")
    for _ in range(FIRST_STEPS):
        run.require(by(0.19), update=1)  # later updates of a step do not count for the limit
        run.require(by(0.003), update=0)
    run.require(by(0.049), update=0)  # noise: the floor
    with pytest.raises(MismatchError, match="0.05 is the limit for this run, whose first 5 steps differed by 0.003"):
        run.require(by(0.059), update=0)
    with pytest.raises(MismatchError):
        run.require(by(math.nan), update=0)


@pytest.mark.parametrize(("first", "limit"), [(0.001, 0.05), (0.03, 0.09), (0.085, 0.2)])
def test_the_limit_of_a_run_is_three_times_its_start_between_a_floor_and_the_limit_of_all(
    first: float, limit: float
) -> None:
    run = RunLimit("bfloat16")
    for _ in range(FIRST_STEPS):
        run.require(by(first), update=0)
    run.require(by(limit - 1e-6), update=0)
    with pytest.raises(MismatchError):
        run.require(by(limit + 1e-6), update=0)


def test_the_limit_of_a_run_survives_a_resume_unless_rollouts_compute_in_another_way() -> None:
    run = RunLimit("bfloat16")
    for _ in range(FIRST_STEPS):
        run.require(by(0.003), update=0)
    same, other = RunLimit("bfloat16"), RunLimit("quantized")
    for resumed in (same, other):
        resumed.load_state(json.loads(json.dumps(run.state())))
    with pytest.raises(MismatchError):
        same.require(by(0.059), update=0)
    other.require(by(0.4), update=0)


def test_quantized_rollouts_have_a_limit_of_their_own() -> None:
    """vLLM's FP8 was 0.166 away where bfloat16 is 0.015, so that bfloat16's limit of 0.2 leaves it no room."""
    exact, rounded = (make_spec(rollout={"vllmArgs": given}) for given in ({}, {"quantization": "fp8"}))
    probe = Probe(((1, 2),), ((-1.0,),), arithmetic_of(rounded))
    assert arithmetic_of(exact) == exact.model.dtype
    assert probe.compare([[-1.3]]) == pytest.approx((0.3, 0.3))
    with pytest.raises(MismatchError, match="0.5 is the limit for quantized rollouts"):
        probe.compare([[-1.6]])


def test_probe_samples_are_the_beginning_of_a_few_samples_without_their_last_token() -> None:
    short, long = make_sample((1, 2), (3, 4)), make_sample(tuple(range(50)), tuple(range(50, 100)))
    found = probe_sequences(Batch.of(2, (make_sample((1,), (2,)), short, long, short, short, short), {}))
    assert len(found) == PROBE_SEQUENCES
    assert found[:2] == [[1, 2, 3], list(range(PROBE_TOKENS))]
    sample = probe_sample(found[0])
    assert (sample.prompt_tokens.tolist(), sample.response_tokens.tolist()) == ([1], [2, 3])


def test_a_batch_with_tokens_of_its_own_policy_needs_no_probe() -> None:
    sample = make_sample((1, 2), (3, 4))
    assert probe_sequences(Batch.of(2, (sample,), {}))
    mixed = replace(sample, segments=(prompt((1, 2)), sampled((3,), (0.0,), 0), sampled((4,), (0.0,), 1)))
    assert probe_sequences(Batch.of(2, (sample, mixed), {})) == []
