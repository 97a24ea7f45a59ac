import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api import names
from rljob_api.protocol import Point
from rljob_trainer.reporting.sinks import HISTORY, MetricsLog, Sinks, evaluation_line, step_line

THIRD = 1 / 3


def trained(reward: float, **more: float) -> dict[str, float]:
    return {"reward/mean": reward, "train/loss": THIRD, "time/step": 1.0} | more


def test_a_step_is_one_line_for_people():
    metrics = trained(
        0.61,
        **{
            "train/kl": 0.004,
            "train/entropy": 0.71,
            "perf/tokens_per_s": 12345.0,
            "time/step": 8.4,
            "sampling/rounds": 2.0,
        },
    )
    assert (
        step_line(120, 500, metrics)
        == "step 120/500 | 8.4s | reward 0.610 | loss 0.3333 | kl 0.0040 | entropy 0.71 | rounds 2 | 12.3k tok/s"
    )


def test_metrics_keep_every_bit(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    log.append(1, {"train/loss": THIRD})
    assert log.by_step()[1]["train/loss"] == THIRD


def test_an_attempt_that_was_partitioned_away_writes_nothing_into_its_successors_metrics(tmp_path):
    old = MetricsLog(tmp_path / "metrics.jsonl", 0)
    old.append(1, {"train/loss": 1.0})
    new = MetricsLog(tmp_path / "metrics.jsonl", 1)
    old.append(2, {"train/loss": 2.0})
    new.append(2, {"train/loss": 3.0})
    assert new.by_step() == {1: {"train/loss": 1.0}, 2: {"train/loss": 3.0}}


def test_what_a_machine_without_power_left_of_a_line_is_no_record(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "train/loss": 1.0}\n' + "\0" * 80 + '\n{"step": 2, "train/loss": 2.0}\n')
    assert MetricsLog(file, 2).by_step() == {1: {"train/loss": 1.0}, 2: {"train/loss": 2.0}}
    assert len(file.read_text().splitlines()) == 2


def test_a_metric_that_nobody_described_is_refused(tmp_path):
    with pytest.raises(KeyError, match="not in the table of metrics: train/los"):
        Sinks(tmp_path, 0, 10).record(1, {"train/los": 1.0})
    with pytest.raises(KeyError, match="not in the table of metrics: reward_metrics/a b"):
        Sinks(tmp_path, 0, 10).record(1, {"reward_metrics/a b": 1.0})


def test_a_metric_that_a_reward_function_named_is_taken(tmp_path):
    sinks = Sinks(tmp_path, 0, 10)
    sinks.record(1, {"reward_metrics/format.ok": 0.5})
    assert sinks.of(1) == {"reward_metrics/format.ok": 0.5}


def test_a_line_about_an_evaluation_leaves_out_what_says_no_more_than_the_reward():
    metrics = {"evaluation/reward": 0.5, "evaluation/failed": 0.0, "evaluation_data_source_reward/sum": 0.5}
    metrics |= {
        "evaluation_sets/validation/avg@1": 0.5,
        "evaluation_sets/aime/avg@4": 0.25,
        "evaluation_sets/aime/pass@4": 1.0,
    }
    assert evaluation_line(3, metrics) == "evaluation at step 3 | reward 0.500 | aime/avg@4 0.250 | aime/pass@4 1.000"


def test_a_resumed_run_drops_what_lies_beyond_its_step_and_keeps_the_rest(tmp_path):
    sinks = Sinks(tmp_path, 0, 10)
    sinks.record(0, {"evaluation/reward": 0.25})
    for step in (1, 2, 3, 4):
        sinks.record(step, trained(step / 10))
    sinks.close()
    with names.metrics_file(tmp_path).open("a") as stream:
        stream.write('{"step": 2, "half')

    again = Sinks(tmp_path, 2, 10)
    assert [p.step for p in again.history()] == [1, 2]
    assert again.evaluation() == {"first": 0.25, "last": 0.25}
    assert again.of(2)["reward/mean"] == 0.2
    again.record(3, trained(0.9))
    again.close()
    lines = [json.loads(line) for line in names.metrics_file(tmp_path).read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]

    events = EventAccumulator(str(names.tensorboard_dir(tmp_path))).Reload()
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("reward/mean")] == [(1, 0.1), (2, 0.2), (3, 0.9)]


def test_a_step_without_rewards_is_a_point_of_its_loss(tmp_path):
    sinks = Sinks(tmp_path, 0, 10)
    sinks.record(1, {"train/loss": 2.5, "train/tokens": 8.0, "time/step": 0.5})
    assert sinks.history() == [Point(step=1, loss=2.5, seconds=0.5)]
    assert sinks.evaluation() == {}
    for step, loss in ((0, 3.0), (1, 2.0)):
        sinks.record(step, {"evaluation/loss": loss})
    assert sinks.evaluation() == {"first": 3.0, "last": 2.0}


def test_metrics_of_old_steps_are_not_kept_in_memory_but_the_first_evaluation_is(tmp_path):
    sinks = Sinks(tmp_path, 0, 100)
    for step in range(HISTORY + 11):
        sinks.record(step, trained(0.5) | {"evaluation/reward": step / 100})
    sinks.record(3, {"time/upload": 2.0})
    sinks.close()
    for found in (sinks, Sinks(tmp_path, HISTORY + 10, 100)):
        assert [step for step in range(HISTORY + 11) if found.of(step)] == list(range(11, HISTORY + 11))
        assert found.evaluation() == {"first": 0.0, "last": (HISTORY + 10) / 100}


def test_an_evaluation_that_is_repeated_replaces_the_one_of_its_step(tmp_path):
    sinks = Sinks(tmp_path, 0, 10)
    for reward in (0.25, 0.5):
        sinks.record(0, {"evaluation/reward": reward})
    assert sinks.evaluation() == {"first": 0.5, "last": 0.5}
    sinks.record(1, {"evaluation/reward": 0.75})
    assert sinks.evaluation() == {"first": 0.5, "last": 0.75}


def test_status_carries_points_of_the_whole_run_whenever_it_was_begun_again(tmp_path):
    sinks = Sinks(tmp_path, 0, 400)
    for step in range(1, 38):
        sinks.record(step, trained(step / 400))
    assert [p.step for p in sinks.history()] == list(range(1, 38)), "few steps are all there"
    for step in range(38, 398):
        sinks.record(step, trained(step / 400))
        steps = [p.step for p in sinks.history()]
        assert len(steps) <= HISTORY and steps[-1] == step
    assert steps == [*range(8, 397, 8), 397]
    assert [p.reward for p in sinks.history()] == [step / 400 for step in steps]
    sinks.close()
    assert Sinks(tmp_path, 397, 400).history() == sinks.history()


def test_the_pace_is_the_median_of_the_last_ten_steps_however_thin_the_history_is(tmp_path):
    sinks = Sinks(tmp_path, 0, 8192)
    assert sinks.pace() is None
    for step in range(1, 601):
        sinks.record(step, trained(0.5, **{"time/step": 10.0 if step < 590 else 60.0 + step - 590}))
    sinks.record(600, {"evaluation/reward": 0.5})
    assert sinks.pace() == 65.5, "591 to 600 took 61 to 70 s"
    sinks.record(601, trained(0.5, **{"time/step": 9000.0}))
    assert sinks.pace() == 66.5, "a step that saved does not shift it"
    sinks.close()
    assert Sinks(tmp_path, 600, 8192).pace() == 65.5, "also of a resumed run"


def test_what_the_last_checkpoint_took_is_known_with_its_background_and_after_a_restart(tmp_path):
    sinks = Sinks(tmp_path, 0, 10)
    sinks.record(1, trained(0.5))
    assert sinks.saving() is None
    sinks.record(1, {"time/save": 2.0, "time/save_background": 30.0})
    sinks.record(2, trained(0.5))
    assert sinks.saving() == 32.0
    sinks.close()
    assert Sinks(tmp_path, 2, 10).saving() == 32.0
