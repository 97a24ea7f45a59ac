from dataclasses import replace
from itertools import pairwise

import pytest

from rljob_api import names
from rljob_api.metrics import require_known
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.driver.buffer.assembly import (
    Outcome,
    assemble,
    data_source_metrics,
    failure_metrics,
    require_scored,
    reward_metrics,
    shaped,
)
from rljob_trainer.driver.buffer.batch_files import read, record, replay, write
from rljob_trainer.driver.buffer.partial_sample import continuation_seed, evaluation_seed, training_seed
from rljob_trainer.driver.replicas import Replicas
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import RewardFailed, RewardFailureKind
from rljob_trainer.wire.trajectory import Trajectory
from trainer.driver.buffer.specs import job


def outcome(group: int, sample: int, reward: float = 1.0, policy_step: int = 2) -> Outcome:
    return Outcome(group, sample, trajectory(group, sample, 1, reward, policy_step))


def trajectory(group: int, sample: int, length: int, reward: float, policy_step: int) -> Trajectory:
    return Trajectory.of_response(
        (1, 2),
        (3,) * length,
        (-0.1,) * length,
        policy_step,
        prompt_index=7,
        group=group,
        sample=sample,
        finish_reason="stop",
        reward=reward,
        data_source="sum",
    )


def failed(group: int, sample: int, kind: RewardFailureKind = "raised") -> Outcome:
    return Outcome(
        group, sample, RewardFailed(kind, "spec.rewards[0].python.path", "/r.py", "ValueError: no (line 2: x)")
    )


NOW = range(2, 3)
FULL = [outcome(g, s, reward=float(s)) for g in (1, 0) for s in (1, 0)]


def test_a_batch_is_in_group_and_sample_order_however_it_came():
    batch = assemble(3, NOW, 2, 2, FULL, {"time/generate": 1.5})
    assert [(s.group, s.sample) for s in batch.samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert batch.metrics == {
        "time/generate": 1.5,
        "reward/mean": 0.5,
        "reward/zero_std": 0.0,
        "response_length/mean": 1.0,
        "response_length/clipped": 0.0,
        "sampling/continued": 0.0,
    }


@pytest.mark.parametrize("wrong", [FULL[1:], [*FULL, FULL[0]], [*FULL[1:], FULL[1]]])
def test_a_lost_or_doubled_sample_never_passes(wrong):
    with pytest.raises(AssertionError):
        assemble(3, NOW, 2, 2, wrong, {})


def test_a_sample_of_another_policy_than_the_one_that_was_served_never_passes():
    with pytest.raises(AssertionError, match="other policies"):
        assemble(3, NOW, 2, 2, [outcome(0, 0, policy_step=1), *[o for o in FULL if (o.group, o.sample) != (0, 0)]], {})


def test_a_sample_whose_reward_failed_leaves_the_batch_and_is_counted():
    outcomes = [outcome(0, 0), failed(0, 1), outcome(0, 2, reward=0.0), failed(0, 3, "timeout")]
    batch = assemble(3, NOW, 1, 4, outcomes, {})
    assert [s.sample for s in batch.samples] == [0, 2] and batch.metrics["reward/mean"] == 0.5
    assert failure_metrics(outcomes) == {
        "reward/failed": 2.0,
        "reward/failed_raised": 1.0,
        "reward/failed_timeout": 1.0,
        "reward/failed_value": 0.0,
        "reward/failed_service": 0.0,
    }


def test_metrics_of_rewards_are_means_over_the_samples_that_have_them():
    found = [{"acc": 1.0, "format": 0.5}, {"acc": 0.0}, {}, {"acc": 1.0}]
    outcomes = [replace(outcome(0, i), metrics=metrics) for i, metrics in enumerate(found)]
    expected = {"reward_metrics/acc": 2 / 3, "reward_metrics/format": 0.5}
    assert reward_metrics("reward_metrics/", outcomes) == expected
    assert reward_metrics("reward_metrics/", [o.at(3) for o in outcomes]) == expected


def test_of_too_many_metrics_of_rewards_those_of_most_samples_are_kept():
    outcomes = [replace(outcome(0, i), metrics={f"row_{i:02}": 1.0, "acc": 1.0}) for i in range(40)]
    assert list(reward_metrics("reward_metrics/", outcomes)) == [
        "reward_metrics/acc",
        *(f"reward_metrics/row_{i:02}" for i in range(15)),
    ]


def test_rewards_are_reported_for_every_data_source_under_a_name_that_a_status_takes():
    rewards = [("openai/gsm8k", 1.0), ("openai/gsm8k", 0.0), ("in house", 0.5), ("", 1.0)]
    outcomes = [
        Outcome(0, i, replace(trajectory(0, i, 1, reward, 2), data_source=source))
        for i, (source, reward) in enumerate(rewards)
    ]
    found = data_source_metrics("data_source_reward/", [*outcomes, failed(0, 4)])
    assert found == {"data_source_reward/in_house": 0.5, "data_source_reward/openai/gsm8k": 0.5}
    require_known(found)
    many = [Outcome(0, i, replace(trajectory(0, i, 1, 1.0, 2), data_source=f"s{i:02}")) for i in range(40)]
    assert list(data_source_metrics("", many)) == [f"s{i:02}" for i in range(16)]


def test_a_penalty_for_length_grows_over_the_buffer_and_is_reported():
    def spec(**overlong: float) -> RLJobSpec:
        return job(algorithm={"overlong": overlong}, rollout={"sampling": {"maxTokens": 8}})

    long = trajectory(0, 0, 7, 1.0, 2)
    outcomes = [Outcome(0, 0, long), outcome(0, 1), failed(0, 2)]
    assert shaped(outcomes, spec()) == (outcomes, {})
    found, metrics = shaped(outcomes, spec(bufferTokens=4, penalty=2.0))
    assert [o.result.reward for o in found[:2]] == [1.0 - 1.5, 1.0] and found[2] == outcomes[2]
    assert metrics == {"reward/overlong_penalty": 0.75}


def test_a_step_whose_rewards_all_failed_is_the_users_to_mend():
    with pytest.raises(
        ConfigurationError, match=r"every reward of a step failed; the first said: ValueError: no \(line 2: x\)"
    ) as caught:
        require_scored([failed(0, 0), failed(0, 1)])
    assert caught.value.field == "spec.rewards[0].python.path"


def test_a_recorded_batch_comes_back_bit_equal(tmp_path):
    batch = assemble(3, NOW, 2, 2, FULL, {"time/generate": 1 / 3})
    record(tmp_path, batch, 0.7)
    assert replay(tmp_path / "batches", 3, 0.7) == batch == read(names.batch_file(tmp_path, 3))
    with pytest.raises(ConfigurationError, match="no batch of step 4"):
        replay(tmp_path / "batches", 4, 0.7)


def test_a_batch_of_another_or_an_unknown_temperature_is_not_replayed(tmp_path):
    batch = assemble(3, NOW, 2, 2, FULL, {})
    record(tmp_path, batch, 0.7)
    with pytest.raises(
        ConfigurationError, match=r"spec\.rollout\.sampling\.temperature = 1\.0: .* at temperature 0\.7, and"
    ):
        replay(tmp_path / "batches", 3, 1.0)
    write(names.batch_file(tmp_path, 3), batch)
    with pytest.raises(ConfigurationError, match="at temperature unknown, and"):
        replay(tmp_path / "batches", 3, 1.0)


def test_seeds_are_the_same_for_the_same_place_and_differ_elsewhere():
    assert training_seed(0, 1, 5) == training_seed(0, 1, 5)
    found = {training_seed(s, n, p) for s in (0, 1) for n in (1, 2) for p in (5, 6)}
    found |= {evaluation_seed(0, name, 5) for name in "ab"}
    found |= {continuation_seed(1, i, drawn) for i in (0, 1) for drawn in (0, 3)}
    assert len(found) == 14
    assert training_seed(0, 1, 5) < 2**48


def endpoint(uid: str, url: str = "http://a") -> RolloutEndpoint:
    return RolloutEndpoint(pod="demo-rollout-0", pod_uid=uid, url=url)


def test_a_replica_becomes_current_by_way_of_health_and_weights():
    replicas, a = Replicas(), endpoint("a")
    replicas.follow([a])
    assert (replicas.to_probe(0.0), replicas.to_publish()) == ([a], [])
    replicas.healthy(a)
    assert (replicas.to_probe(0.0), replicas.to_publish(), replicas.current()) == ([], [a], [])
    replicas.published(a, 4)
    assert (replicas.to_publish(), replicas.current(), replicas.report()[0].policy_step) == ([], [a], 4)
    replicas.trained()
    assert (replicas.to_publish(), replicas.current()) == ([a], [])


def test_a_lost_replica_waits_longer_each_time_and_needs_weights_again():
    replicas, a = Replicas(), endpoint("a")
    replicas.follow([a])
    for wait in (1.0, 2.0, 4.0):
        replicas.healthy(a)
        replicas.lost(a, now=100.0)
        assert replicas.to_probe(100.0 + wait - 0.1) == [] and replicas.to_probe(100.0 + wait) == [a]
    replicas.healthy(a)
    assert replicas.to_publish() == [a]


def test_a_replica_that_stays_lost_for_hours_does_not_end_the_driver():
    """2.0 ** 1024 is no float: at one failure in ten seconds that is reached within three hours."""
    replicas, a = Replicas(), endpoint("a")
    replicas.follow([a])
    for _ in range(1100):
        replicas.lost(a, now=100.0)
    assert replicas.to_probe(109.9) == [] and replicas.to_probe(110.0) == [a]


def test_a_replica_that_fails_updates_in_a_row_is_left_out_for_longer_each_time_and_named():
    replicas, good, bad = Replicas(), endpoint("good"), endpoint("bad")
    replicas.follow([good, bad])
    replicas.healthy(good)
    now, asked = 0.0, []
    for step in range(6):
        replicas.published(good, step)
        while bad not in replicas.to_probe(now):
            now += 1.0
        asked.append(now)
        replicas.healthy(bad)
        assert bad in replicas.to_publish()
        replicas.lost(bad, now, "slow")
        replicas.rejected(bad, now, f"it did not take step {step}")
        assert bool(replicas.report()[1].quarantine) is (step > 0)
    assert [b - a for a, b in pairwise(asked)] == [1.0, 60.0, 120.0, 240.0, 480.0]
    assert replicas.report()[1].quarantine == "it did not take step 5" and not replicas.report()[0].quarantine
    replicas.published(bad, 6)
    assert not replicas.report()[1].quarantine


def test_a_replica_in_quarantine_is_asked_as_soon_as_too_few_others_answer():
    replicas, good, bad = Replicas(), endpoint("good"), endpoint("bad")
    replicas.follow([good, bad])
    replicas.healthy(good)
    for _ in range(4):
        replicas.lost(bad, now=0.0)
        replicas.rejected(bad, 0.0, "slow")
    assert replicas.to_probe(100.0) == []
    replicas.lost(good, now=100.0)
    assert replicas.to_probe(100.5) == [bad]


def test_hundred_publications_wait_for_a_bad_replica_only_a_few_times():
    """With a step of 100 s. Each failed publication costs SILENT_SECONDS, for all servers."""
    replicas, everyone = Replicas(), [endpoint(str(i)) for i in range(32)]
    replicas.follow(everyone)
    for one in everyone:
        replicas.healthy(one)
    waited = 0
    for step in range(100):
        now = 100.0 * step
        for one in replicas.to_probe(now):
            replicas.healthy(one)
        for one in replicas.to_publish():
            if one is everyone[0]:
                waited += 1
                replicas.lost(one, now)
                replicas.rejected(one, now, "slow")
            else:
                replicas.published(one, step)
        replicas.trained()
    assert waited == 11


def test_a_replica_that_keeps_refusing_the_token_is_named_so():
    """Once may be a pod of another job, which has got the address of one that is gone."""
    replicas, a = Replicas(), endpoint("a")
    replicas.follow([a])
    for unauthorized in (False, False, True):
        replicas.refused(a, now=0.0, problem="401")
        assert replicas.report()[0].unauthorized is unauthorized
    replicas.healthy(a)
    assert not replicas.report()[0].unauthorized


def test_a_new_pod_of_an_old_name_knows_nothing():
    replicas, old, new = Replicas(), endpoint("old"), endpoint("new")
    replicas.follow([old])
    replicas.healthy(old)
    replicas.published(old, 4)
    replicas.follow([new])
    assert (replicas.current(), replicas.to_probe(0.0)) == ([], [new])
    replicas.published(old, 4)
    assert replicas.current() == []
