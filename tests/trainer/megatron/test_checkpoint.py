"""A resumed run is the run that was never interrupted."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import StepBatch
from trainer.megatron.models import job, make_batch, make_model, ranks_of
from trainer.megatron.test_parity import off_policy
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def batches(model: Path) -> list[StepBatch]:
    return [make_batch(model, step) for step in (1, 2, 3, 4)]


def run(spec: RLJobSpec, batches: list[StepBatch], load: Path | None = None, save: Path | None = None) -> Any:
    """Load, train on `batches`, save after the second of four; metrics, exported weights, and seconds that the save took."""

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine, metrics, seconds = Engine(spec, lambda: None), [], 0.0
        if load:
            engine.load(load)
        for batch in batches:
            metrics.append(engine.train_step(batch))
            if save and batch.step == 2:
                began = time.monotonic()
                engine.save(save)
                seconds = time.monotonic() - began
        return metrics, {name: t.float().numpy() for name, t in engine.export()}, seconds

    return run_ranks(ranks_of(spec), on_a_rank)[0]


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "dtype"),
    [(1, 1, 1, "float32"), (1, 1, 2, "float32"), (2, 2, 1, "float32"), (2, 1, 2, "bfloat16")],
)
def test_resume_in_the_same_layout_is_bit_exact(
    model: Path, batches: list[StepBatch], tmp_path: Path, tensor: int, pipeline: int, data: int, dtype: str
) -> None:
    """Losses, KL to the starting model and weights: so the optimizer, the schedule and the reference are right too."""
    spec = off_policy(
        job(model, tensor, pipeline, data, dtype, miniBatches=2, optimizer={"learningRate": 1e-3, "warmupSteps": 7})
    )
    metrics, weights, seconds = run(spec, batches, save=tmp_path / "c")
    resumed, resumed_weights, _ = run(spec, batches[2:], load=tmp_path / "c")
    assert resumed == metrics[2:]
    assert all((weights[n] == resumed_weights[n]).all() for n in weights)
    assert seconds < 5


LAYOUTS = [((2, 1, 1), (1, 2, 1)), ((2, 2, 1), (1, 1, 1)), ((1, 1, 2), (2, 1, 1)), ((1, 2, 1), (2, 1, 2))]


@pytest.mark.parametrize(("before", "after"), LAYOUTS)
@pytest.mark.parametrize("vocabulary", [160, 161])
def test_a_checkpoint_goes_on_in_another_layout(
    megatron: None, tmp_path: Path, vocabulary: int, before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    model = make_model(tmp_path / "model", tied=False, vocabulary=vocabulary)
    batches = [make_batch(model, step) for step in (1, 2, 3, 4)]
    metrics, weights, _ = run(off_policy(job(model, *before)), batches, save=tmp_path / "c")
    resumed, resumed_weights, _ = run(off_policy(job(model, *after)), batches[2:], load=tmp_path / "c")
    for step, expected in zip(resumed, metrics[2:], strict=True):
        assert step == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for name, expected in weights.items():
        torch.testing.assert_close(torch.tensor(resumed_weights[name]), torch.tensor(expected), rtol=0, atol=1e-4)


def test_the_spec_has_the_last_word_on_the_optimizer(model: Path, batches: list[StepBatch], tmp_path: Path) -> None:
    first, second = (
        off_policy(job(model, optimizer={"learningRate": rate, "beta1": beta}))
        for rate, beta in ((1e-3, 0.9), (5e-4, 0.5))
    )
    run(first, batches[:2], save=tmp_path / "c")
    resumed, _, _ = run(second, batches[2:], load=tmp_path / "c")
    assert [step["train/learning_rate"] for step in resumed] == [5e-4, 5e-4]

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(second, lambda: None)
        engine.load(tmp_path / "c")
        return engine._optimizer.param_groups[0]["betas"][0]

    assert run_ranks(1, on_a_rank) == [0.5]


def test_training_twice_gives_the_same_bits(model: Path, batches: list[StepBatch]) -> None:
    spec = off_policy(job(model, 2, 1, 1))
    (first, first_weights, _), (second, second_weights, _) = run(spec, batches), run(spec, batches)
    assert first == second
    assert all((first_weights[n] == second_weights[n]).all() for n in first_weights)


def test_an_existing_directory_is_not_written_over(model: Path, tmp_path: Path) -> None:
    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine

        with pytest.raises(FileExistsError):
            Engine(job(model), lambda: None).save(tmp_path)

    run_ranks(1, on_a_rank)


def test_saving_leaves_no_process_behind(model: Path, tmp_path: Path) -> None:
    """It would hold the connections of a killed rank open, and the peers would wait for it."""

    def on_a_rank() -> list[str]:
        from rljob_trainer.megatron.engine import Engine

        Engine(job(model), lambda: None).save(tmp_path / "c")
        return [children.read_text() for children in Path("/proc/self/task").glob("*/children")]

    assert set(run_ranks(1, on_a_rank)[0]) == {""}
