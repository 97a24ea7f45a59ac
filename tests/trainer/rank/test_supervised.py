"""Tasks that learn from given examples, as the launcher starts them: real megatron, a driver without rollouts, no token."""

import json
from pathlib import Path
from typing import Any

import pytest

from extra import extra_but
from rljob_api import names
from rljob_trainer.rank import main as rank
from trainer.megatron.models import make_model
from trainer.rank.job import Job, Running
from trainer.rank.tokenizer import write_tokenizer

pytestmark = pytest.mark.slow

ROWS, PER_STEP, STEPS = 16, 4, 8
TRAIN = {"samplesPerStep": PER_STEP, "tokensPerMicroBatch": 64, "optimizer": {"learningRate": 3e-3}}
HELD_OUT = ("evaluation/loss", "evaluation/perplexity")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer, and rows for every task: the digit after a digit."""
    rank.prepare()
    root = tmp_path_factory.mktemp("material")
    write_tokenizer(make_model(root / "model"), words=12)
    digits = [(str(i % 9), str(i % 9 + 1)) for i in range(ROWS)]
    rows = [
        {"prompt": a, "response": b, "chosen": b, "rejected": a, "text": " ".join((a, b) * (i % 5 + 1))}
        for i, (a, b) in enumerate(digits)
    ]
    (root / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:6]))
    return root


def job(material: Path, directory: Path, task: str = "sft", train: dict[str, Any] = {}, **changes: Any) -> Job:  # noqa: B006
    """Of two epochs, unless `train` says otherwise."""
    data = {"train": [str(material / "train.jsonl")], "validation": [str(material / "held-out.jsonl")], "maxTokens": 8}
    kind = "text" if task == "pretrain" else "columns"
    length = {} if "steps" in train else {"epochs": 2}
    common = {"rewards": [], "algorithm": {}, "rollout": {}, "evaluation": {"everySteps": 4}}
    checkpoint = {"path": str(directory / "run"), "everySteps": 4, "asynchronous": False}
    return Job(
        material,
        directory,
        **common
        | {"task": task, "data": data | {"format": kind}, "train": TRAIN | length | train, "checkpoint": checkpoint}
        | changes,
    )


@pytest.fixture(scope="module")
def undisturbed(
    material: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, Running, dict[int, list[float]]]:
    found = job(material, tmp_path_factory.mktemp("sft"))
    running = found.start(1)
    assert running.wait() == [0, 0, 0]
    return found, running, found.losses()


def of(job: Job, name: str) -> dict[int, float]:
    return {m["step"]: m[name] for m in job.metrics() if name in m}


def test_a_job_that_only_evaluates_measures_the_checkpoint_and_leaves_nothing_else(
    material: Path, tmp_path: Path, undisturbed: Any
) -> None:
    trained = undisturbed[0]
    checkpoint = names.step_dir(trained.root, STEPS)
    own = {"path": str(tmp_path / "run"), "resumeFrom": str(checkpoint)}
    found = job(material, tmp_path, evaluation={"only": True}, checkpoint=own)
    running = found.start(1)
    assert running.wait() == [0, 0, 0]
    assert (running.outcome(), running.progress().step) == ("succeeded", STEPS)
    for name in HELD_OUT:
        assert of(found, name) == {STEPS: of(trained, name)[STEPS]}
    assert not found.losses() and not list((tmp_path / "run").glob("global_step_*"))


def test_fine_tuning_makes_the_steps_of_its_epochs_and_learns(undisturbed: Any) -> None:
    found, running, losses = undisturbed
    progress = running.progress()
    assert (running.outcome(), progress.step, progress.steps) == ("succeeded", STEPS, STEPS)
    assert list(losses) == list(range(1, STEPS + 1))
    for name in HELD_OUT:
        held_out = of(found, name)
        assert list(held_out) == [0, 4, 8]
        assert held_out[8] < held_out[0]
    held_out = of(found, "evaluation/loss")
    assert progress.evaluation == {"first": held_out[0], "last": held_out[8]}
    assert of(found, "data/epoch")[STEPS] == 2
    assert min(of(found, "time/data").values()) >= 0
    assert not any(name.startswith(("rollout/", "reward/", "train_rollout/")) for m in found.metrics() for name in m)
    manifest = json.loads(names.manifest_file(Path(progress.checkpoints[-1].path)).read_text())
    assert (manifest["digest"], manifest["data"]["consumed"]) == ("", STEPS * PER_STEP)
    assert (Path(progress.export) / "config.json").is_file()


def test_an_attempt_that_resumes_trains_on_the_same_data_bit_for_bit(undisturbed: Any) -> None:
    found, _, losses = undisturbed
    again = found.start(2, resume=4)
    assert again.wait() == [0, 0, 0]
    assert again.progress().started_from == 4
    assert found.losses() == losses


def test_rows_of_a_users_own_function_are_trained_and_resumed_like_those_of_a_file(
    material: Path, tmp_path: Path, undisturbed: Any
) -> None:
    """The same numbers as `undisturbed`, from a file that only the function can read."""
    raw, code = tmp_path / "raw.jsonl", tmp_path / "custom.py"
    rows = [json.loads(line) for line in (material / "train.jsonl").read_text().splitlines()]
    raw.write_text("".join(json.dumps({"turn": [row["prompt"], row["response"]]}) + "\n" for row in rows))
    code.write_text("def rows(row): return dict(zip(('prompt', 'response'), row['turn']))\n")
    data = {"train": [str(raw)], "custom": {"path": str(code)}, "maxTokens": 8, "format": "columns"}
    found = job(material, tmp_path, data=data, evaluation={})
    running = found.start(1)
    assert running.wait() == [0, 0, 0]
    assert found.losses() == undisturbed[2]
    again = found.start(2, resume=4)
    assert again.wait() == [0, 0, 0]
    assert again.progress().started_from == 4 and found.losses() == undisturbed[2]
    code.write_text(code.read_text().replace("row['turn']", "row['turn'][::-1]"))
    other = found.start(3, resume=4)
    assert any(other.wait())
    assert "and now their texts or order differ" in other.failures()["error-driver"].message


def test_another_layout_resumes_on_the_same_data(material: Path, undisturbed: Any) -> None:
    found, running, losses = undisturbed
    whole = running.progress().checkpoints[0]
    other = job(
        material,
        found.root.parent,
        trainer={"device": "cpu", "processesPerNode": 2},
    )
    again = other.start(3, resume=whole.step)
    assert again.wait() == [0, 0, 0]
    found_losses = other.losses()
    assert found_losses[5][0] == pytest.approx(losses[5][0], rel=3e-7), "the same weights and the same data"
    for step, expected in losses.items():
        assert found_losses[step] == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("task", "metric", "steps"),
    [("dpo", "accuracy", 4), ("rewardModel", "accuracy", 40), ("pretrain", "perplexity", 4)],
)
def test_every_other_task_trains_and_evaluates(
    material: Path, tmp_path: Path, task: str, metric: str, steps: int
) -> None:
    """The head of a reward model begins at zero, so that it takes more steps."""
    found = job(material, tmp_path, task, {"steps": steps}, evaluation={"everySteps": steps})
    running = found.start(1)
    assert running.wait() == [0, 0, 0]
    assert list(found.losses()) == list(range(1, steps + 1))
    assert list(of(found, f"evaluation/{metric}")) == list(of(found, "evaluation/loss")) == [0, steps]
    assert of(found, "evaluation/loss")[steps] < of(found, "evaluation/loss")[0]
    if metric == "accuracy":
        margin = of(found, "evaluation/margin")
        assert margin[steps] > margin[0] == 0, "before the first step policy and reference are equal, and all scores 0"


@pytest.mark.extra
def test_a_reference_on_ranks_of_its_own_measures_pairs_as_one_on_the_trainers_does(
    material: Path, tmp_path: Path
) -> None:
    found: dict[str, Job] = {}
    for place, reference in {"shared": {}, "alone": {"processesPerNode": 1}}.items():
        (tmp_path / place).mkdir()
        found[place] = job(
            material, tmp_path / place, "dpo", {"steps": 3}, evaluation={"everySteps": 3}, reference=reference
        )
        assert not any(found[place].start(1).wait())
    shared, alone = (of(each, "evaluation/loss") | of(each, "train/loss") for each in found.values())
    assert list(alone) == list(shared) == [0, 3, 1, 2]
    assert alone == pytest.approx(shared, abs=1e-6)


@pytest.mark.parametrize("task", extra_but(("sft",), ("sft", "dpo", "pretrain")))
def test_adapters_are_trained_resumed_and_exported(material: Path, tmp_path: Path, task: str) -> None:
    model = {"path": str(material / "model"), "dtype": "float32", "lora": {"rank": 4, "alpha": 16}}
    steps = 8 if task == "sft" else 4
    train = {"steps": steps, "optimizer": {"learningRate": 1e-2}}
    found = job(material, tmp_path, task, train, model=model, evaluation={"everySteps": steps})
    running = found.start(1)
    assert running.wait() == [0, 0, 0]
    assert of(found, "evaluation/loss")[steps] < of(found, "evaluation/loss")[0]
    export, losses = Path(running.progress().export), found.losses()
    assert {"config.json", "model.safetensors"} <= {file.name for file in export.iterdir()}
    assert {file.name for file in (export.parent / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    if task == "sft":
        again = found.start(2, resume=4)
        assert again.wait() == [0, 0, 0]
        assert found.losses() == losses, "bit for bit"


def test_a_file_of_another_shape_is_refused_with_its_columns(material: Path, tmp_path: Path) -> None:
    running = job(
        material,
        tmp_path,
        data={"train": [str(material / "train.jsonl")], "format": "columns", "promptKey": "question"},
    ).start(1)
    assert running.wait()[0] != 0
    failure = running.failures()["error-driver"]
    assert (failure.kind, failure.field) == ("configuration", "spec.data.train[0]")
    assert "'question'" in failure.message
    assert "prompt" in failure.message
