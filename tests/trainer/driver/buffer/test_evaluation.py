"""Metrics of held-out sets, against the formulas of their papers and numbers by hand; several sets in the whole driver."""

import json
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api import names
from rljob_api.metrics import require_known
from rljob_trainer.driver import main
from rljob_trainer.driver.buffer.assembly import (
    Outcome,
    evaluation_metrics,
    majority_is_correct,
    pass_at_k,
    set_metrics,
)
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.wire.trajectory import Trajectory
from trainer.driver.bench import Bench, Characters, batch, begun, call, publish, trained, until
from trainer.driver.servers import Server, Thinker

FAILED = RewardFailed("raised", "spec.rewards[0]", "/r.py", "no")


def group(*answers: tuple[float | None, str | None], source: str = "sum") -> list[Outcome]:
    """Responses with a reward, None if it failed, and a prediction."""
    fields = {"prompt_index": 0, "group": 0, "finish_reason": "stop", "data_source": source}
    return [
        Outcome(0, i, FAILED)
        if reward is None
        else Outcome(
            0, i, Trajectory.of_response((1,), (2,), (-0.1,), 0, sample=i, reward=reward, **fields), {}, prediction
        )
        for i, (reward, prediction) in enumerate(answers)
    ]


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_correct_response(n: int) -> None:
    for c in range(n + 1):
        correct = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = [any(choice) for choice in combinations(correct, k)] if n <= 7 else None
            stable = (
                1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
            )  # the paper's program, figure 3
            assert pass_at_k(n, c, k) == pytest.approx(stable, abs=1e-12)
            assert chosen is None or pass_at_k(n, c, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "correct"),
    [
        ([(1, "4"), (0, "5"), (1, "4")], True),
        ([(1, "4"), (0, "5"), (0, "5")], False),
        ([(1, "4"), (0, "5")], True),
        ([(0, "5"), (1, "4")], False),
        ([(0, None), (0, None), (1, "4")], True),
        ([(None, None), (0, None)], False),
    ],
)
def test_the_most_frequent_answer_wins_and_of_several_the_first(answers: list, correct: bool) -> None:
    assert majority_is_correct(group(*answers), 0.5) is correct


def test_a_set_is_measured_over_its_prompts() -> None:
    right, wrong = (1.0, "4"), (0.1, "5")
    groups = [
        group(right, wrong, wrong, wrong),
        group(right, right, right, wrong),
        group(wrong, (None, None), (None, None), wrong),
    ]
    assert set_metrics(groups, 0.5) == pytest.approx(
        {
            "avg@4": (1.3 / 4 + 3.1 / 4 + 0.1) / 3,
            "pass@1": (1 / 4 + 3 / 4 + 0) / 3,
            "pass@2": (1 / 2 + 1 + 0) / 3,
            "pass@4": (1 + 1) / 2,
            "maj@4": 1 / 3,
        }
    )
    assert set_metrics([group((1.0, None), (0.0, None), (0.0, None))], 0.5).keys() == {
        "avg@3",
        "pass@1",
        "pass@2",
        "pass@3",
    }
    assert set_metrics([group(right), group((None, None))], 0.5) == {"avg@1": 1.0, "pass@1": 1.0}
    assert set_metrics([group((None, None))], 0.5) == {}


def test_an_evaluation_counts_every_prompt_once_whatever_its_set_samples() -> None:
    sets = {"a": [group((1.0, None)), group((None, None))], "b": [group((0.0, None), (1.0, None), source="b")]}
    found = evaluation_metrics(sets, 0.5)
    require_known(found)
    assert found == {
        "evaluation/reward": 0.75,
        "evaluation/failed": 1.0,
        "evaluation_data_source_reward/sum": 1.0,
        "evaluation_data_source_reward/b": 0.5,
        "evaluation_sets/a/avg@1": 1.0,
        "evaluation_sets/a/pass@1": 1.0,
        "evaluation_sets/b/avg@2": 0.5,
        "evaluation_sets/b/pass@1": 0.5,
        "evaluation_sets/b/pass@2": 1.0,
    }


TAUGHT = {
    "pools": [{"name": "teacher", "model": "/models/teacher"}],
    "critic": {"processesPerNode": 1},
    "algorithm": {"advantage": "gae", "distillation": {"pool": "teacher"}},
}


@pytest.mark.parametrize("idle", [{}, TAUGHT], ids=["alone", "with a critic and a teacher that nobody started"])
async def test_a_job_may_evaluate_its_model_and_end(tmp_path, monkeypatch, idle: dict[str, Any]) -> None:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    bench = Bench(tmp_path)
    bench.spec |= idle | {"evaluation": {"only": True}}
    bench.root.mkdir()
    earlier = {"step": 7, "evaluation/reward": 0.25}  # of the training, with other sets
    names.metrics_file(bench.root).write_text(json.dumps(earlier) + "\n")
    async with Server("demo-rollout-0") as a:
        bench.control(rollouts=(a.endpoint,))
        rank = await bench.connect()
        await call(rank.start, 7, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 7, [a])
        assert await until(rank, "over") == "succeeded"
        await call(rank.end, "")
        await bench.driver
    assert len(a.requests) == 3 and {r["temperature"] for r in a.requests} == {0.0}
    assert [(m["step"], m["evaluation/reward"]) for m in bench.metrics() if "evaluation/reward" in m] == [
        (7, 0.25),
        (7, 1.0),
    ]
    assert bench.progress().evaluation == {"first": 1.0, "last": 1.0}


async def test_every_set_is_answered_as_often_and_as_it_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    bench = Bench(tmp_path)
    rows = {"prompt": ["4+1=", "4+2="], "answer": ["5", "6"], "data_source": ["hard"] * 2}
    pq.write_table(pa.table(rows), tmp_path / "hard.parquet")
    sampling = {"temperature": 0.6, "topP": 0.9, "topK": 5, "minP": 0.1, "stop": ["x"], "maxTokens": 20}
    hard = {"name": "hard", "files": [str(tmp_path / "hard.parquet")], "samplesPerPrompt": 2, "sampling": sampling}
    bench.spec["evaluation"] = {"everySteps": 1, "sets": [hard]}
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: body["temperature"] == 0.6 and sample == 0
        bench.control(rollouts=(a.endpoint,))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 0, [a])
        found = await batch(rank)
        await bench.evaluated()
        asked = [r for r in a.requests if r["temperature"] != 1.0]
        bench.driver.cancel()
    own = {"temperature": 0.6, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop": ["x"], "max_tokens": 20, "n": 2}
    assert [r | own == r for r in asked] == [False] * 3 + [True] * 2 and len({r["seed"] for r in asked}) == 5
    assert all("top_p" not in r and r["stop"] == [] for r in a.requests if r["temperature"] == 1.0)
    (metrics,) = [m for m in bench.metrics() if "evaluation/reward" in m]
    assert {name: value for name, value in metrics.items() if "hard" in name} == {
        "evaluation_data_source_reward/hard": 0.5,
        "evaluation_sets/hard/avg@2": 0.5,
        "evaluation_sets/hard/pass@1": 0.5,
        "evaluation_sets/hard/pass@2": 1.0,
        "evaluation_sets/hard/maj@2": 0.0,
    }
    assert metrics["evaluation_sets/validation/avg@1"] == 1.0 and metrics["evaluation/reward"] == 0.8
    assert found.metrics["data_source_reward/sum"] == 1.0


async def test_an_evaluation_that_a_full_step_interrupts_continues_where_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    bench = Bench(tmp_path)
    rows = {"prompt": ["9+1=", "9+2="], "answer": ["10", "11"], "data_source": ["sum"] * 2}
    pq.write_table(pa.table(rows), tmp_path / "held.parquet")
    bench.spec["algorithm"] = {"rolloutCorrection": {"importanceSampling": "token"}}
    bench.spec["train"] |= {"promptsPerStep": 2, "samplesPerPrompt": 2, "partialRollouts": {"maxAge": 1}}
    bench.spec["evaluation"] = {"everySteps": 1}
    async with Thinker("demo-rollout-0", lambda left, right: 150 if left == 9 else 5) as a, begun(bench, [a]) as rank:
        await batch(rank)
        await trained(rank, 1)
    prompts = ["".join(map(chr, r["prompt"])) for r in a.requests]
    assert a.interrupted
    for question in rows["prompt"]:
        first, *further = [p for p in prompts if p.startswith(question)]
        assert first == question and further, "it was interrupted"
        assert all(len(before) < len(after) for before, after in zip([first, *further], further, strict=False))
    assert [m["evaluation/reward"] for m in bench.metrics() if "evaluation/reward" in m] == [1.0]
