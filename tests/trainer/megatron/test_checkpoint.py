"""A resumed run is the run that was never interrupted."""

import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed, run_engines
from trainer.megatron.models import job, make_batch, make_model, ranks_of, train_step
from trainer.megatron.test_parity import off_policy
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def batches(model: Path) -> list[Batch]:
    return [make_batch(model, step) for step in (1, 2, 3, 4)]


def write(engine: Any, directory: Path, alongside: bool = False) -> None:
    """A save that is waited for."""
    writing = engine.save(directory, alongside)
    writing.wait()
    assert writing.error is None
    writing.finish()


def run(spec: RLJobSpec, batches: list[Batch], load: Path | None = None, save: Path | None = None) -> Any:
    """Load, train on `batches`; after the second of four save to `save`. Metrics, exported weights, Adam's count."""

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine, metrics = Engine(spec, lambda: None), []
        if load:
            engine.load(load)
        for batch in batches:
            metrics.append(train_step(engine, batch))
            if save and batch.step == 2:
                write(engine, save)
        return metrics, {name: t.float().numpy() for name, t in engine.export()}, adam_steps(engine)

    return run_ranks(ranks_of(spec), on_a_rank)[0]


def adam_steps(engine: Any) -> set[float]:
    """Updates that Adam has counted, over all parameters: one number."""
    states = [s for o in engine._policy.optimizer.chained_optimizers for s in o.optimizer.state.values()]
    return {float(s["step"]) for s in states}


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "dtype"),
    [
        pytest.param(1, 1, 1, "float32", marks=pytest.mark.extra),
        pytest.param(1, 1, 2, "float32", marks=pytest.mark.extra),
        (2, 2, 1, "float32"),
        (2, 1, 2, "bfloat16"),
    ],
)
def test_resume_in_the_same_layout_is_bit_exact(
    model: Path, batches: list[Batch], tmp_path: Path, tensor: int, pipeline: int, data: int, dtype: str
) -> None:
    """Losses, KL to the starting model and weights: so the optimizer, the schedule and the reference are right too."""
    spec = off_policy(
        job(model, tensor, pipeline, data, dtype, miniBatches=2, optimizer={"learningRate": 1e-3, "warmupSteps": 7})
    )
    metrics, weights, steps = run(spec, batches, save=tmp_path / "saved")
    resumed, resumed_weights, resumed_steps = run(spec, batches[2:], load=tmp_path / "saved")
    assert resumed == metrics[2:]
    assert all((weights[n] == resumed_weights[n]).all() for n in weights)
    assert steps == resumed_steps == {8.0}


def test_gated_delta_nets_resume_bit_for_bit_and_go_on_in_another_layout(megatron: None, tmp_path: Path) -> None:
    """Their matrices and convolutions are several tensors in one, of which each rank has a part."""
    source = make_model(tmp_path / "model", "qwen3_5_text", tied=False)
    batches = [make_batch(source, step) for step in (1, 2, 3, 4)]
    spec = off_policy(job(source, tensor=2))
    metrics, weights, _ = run(spec, batches, save=tmp_path / "saved")
    resumed, resumed_weights, _ = run(spec, batches[2:], load=tmp_path / "saved")
    assert resumed == metrics[2:]
    assert all((weights[n] == resumed_weights[n]).all() for n in weights)
    cut = off_policy(job(source, pipeline=2))
    again, again_weights, _ = run(cut, batches[2:], load=tmp_path / "saved")
    assert again == [pytest.approx(m, abs=1e-5) for m in metrics[2:]]
    assert all(abs(weights[n] - again_weights[n]).max() < 1e-4 for n in weights)


def test_unequal_stages_resume_bit_for_bit_and_go_on_in_equal_ones(
    model: Path, batches: list[Batch], tmp_path: Path
) -> None:
    stages = job(model, 1, 2, 1, miniBatches=2, optimizer={"learningRate": 1e-3})
    uneven = changed(off_policy(stages), trainer={"transformerConfig": {"num_layers_in_first_pipeline_stage": 3}})
    metrics, weights, _ = run(uneven, batches, save=tmp_path / "saved")
    resumed, resumed_weights, _ = run(uneven, batches[2:], load=tmp_path / "saved")
    assert resumed == metrics[2:]
    assert all((weights[n] == resumed_weights[n]).all() for n in weights)
    even, even_weights, _ = run(off_policy(stages), batches[2:], load=tmp_path / "saved")
    assert [m["train/loss"] for m in even] == pytest.approx([m["train/loss"] for m in metrics[2:]], abs=1e-6)
    assert max(abs(weights[n] - even_weights[n]).max() for n in weights) < 1e-5


@pytest.mark.parametrize("alongside", [True, False])
def test_nothing_that_is_trained_while_a_save_is_written_gets_into_it(
    model: Path, batches: list[Batch], tmp_path: Path, alongside: bool
) -> None:
    spec = off_policy(job(model, 2, 1, 1))

    def on_a_rank() -> Any:
        from rljob_trainer.checkpoint.torch_dist import Writing
        from rljob_trainer.megatron.engine import Engine

        trained, write_file = threading.Event(), Writing._write

        def write_late(writing: Writing, i: int) -> None:
            assert trained.wait(60)
            write_file(writing, i)

        Writing._write = write_late  # type: ignore[method-assign]
        engine = Engine(spec, lambda: None)
        train_step(engine, batches[0])
        expected = {name: t.clone() for name, t in engine.export()}
        writing = engine.save(tmp_path / "c", alongside)
        metrics = [train_step(engine, batch) for batch in batches[1:]]
        assert not writing.done
        trained.set()
        writing.wait()
        writing.finish()
        assert any((expected[name] != t).any() for name, t in engine.export())
        engine.load(tmp_path / "c")
        assert all((expected[name] == t).all() for name, t in engine.export())
        return metrics == [train_step(engine, batch) for batch in batches[1:]]

    assert run_ranks(2, on_a_rank) == [True, True]


@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    [
        ("qwen2", {"tensor": 2, "data": 2, "dtype": "bfloat16"}, {}),
        (
            "qwen2",
            {"pipeline": 2},
            {"trainer": {"offload": {"parameters": True, "gradients": True, "optimizer": True}}},
        ),
        ("qwen2", {"data": 2}, {"model": {"lora": {"rank": 4, "alpha": 8}}}),
        ("qwen3_moe", {"data": 2}, {"trainer": {"parallelism": {"expert": 2}}}),
    ],
)
def test_what_a_save_needs_is_known_before_the_first_step(
    megatron: None, tmp_path: Path, kind: str, layout: Any, changes: Any
) -> None:
    """When the optimizer has no moments yet. Otherwise the first save of an attempt would wait until more host memory is pinned."""
    model = make_model(tmp_path / "model", kind)
    spec = changed(job(model, **layout), **changes)

    def on_a_rank() -> tuple[int, int]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        expected = engine._state().copied_bytes
        engine.prepare_save()
        train_step(engine, make_batch(model, 1))
        writing = engine.save(tmp_path / "c", alongside=True)
        return expected, sum(t.nbytes for _, _, (_, tensors) in writing._buckets for _, t in tensors)

    for expected, needed in run_ranks(ranks_of(spec), on_a_rank):
        assert expected <= needed < 1.01 * expected, "the rest is megatron's padding"


def test_what_a_rank_could_not_write_is_known_with_its_reason(model: Path, tmp_path: Path) -> None:
    def on_a_rank() -> str:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(job(model), lambda: None)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writing = engine.save(tmp_path / "c", alongside=True)
        writing.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        return str(writing.error)

    assert "File too large" in run_ranks(1, on_a_rank)[0]


def test_the_spec_has_the_last_word_on_the_optimizer(model: Path, batches: list[Batch], tmp_path: Path) -> None:
    first, second = (
        off_policy(job(model, optimizer={"learningRate": rate, "beta1": beta}))
        for rate, beta in ((1e-3, 0.9), (5e-4, 0.5))
    )
    run(first, batches[:2], save=tmp_path / "saved")

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(second, lambda: None)
        engine.load(tmp_path / "saved")
        rates = [train_step(engine, batch)["train/learning_rate"] for batch in batches[2:]]
        return engine._policy.optimizer.param_groups[0]["betas"][0], rates

    assert run_ranks(1, on_a_rank) == [(0.5, [5e-4, 5e-4])]


def test_training_twice_gives_the_same_bits(model: Path, batches: list[Batch]) -> None:
    spec = off_policy(job(model, 2, 1, 1))
    (first, first_weights, _), (second, second_weights, _) = run(spec, batches), run(spec, batches)
    assert first == second
    assert all((first_weights[n] == second_weights[n]).all() for n in first_weights)


def test_a_checkpoint_without_a_critic_is_refused_by_a_job_that_trains_one(model: Path, tmp_path: Path) -> None:
    """Nothing may start from nothing unsaid. The other way about, the critic is left where it is."""
    grpo = job(model)
    ppo = changed(grpo, algorithm={"advantage": "gae"}, critic={})

    def save(engine: Any) -> None:
        write(engine, tmp_path / engine._spec.algorithm.advantage)

    def load(engine: Any) -> None:
        engine.load(tmp_path / "gae")
        engine.load(tmp_path / "grpo")

    run_engines(1, {"grpo": (grpo, save), "ppo": (ppo, save), "back": (grpo, load)})
    with pytest.raises(AssertionError, match="spec.critic = set: the checkpoint holds policy only"):
        run_engines(1, {"ppo": (ppo, load)})


def test_a_policy_that_waits_for_its_critic_is_saved_with_the_moments_that_its_adam_has_not_made(
    tmp_path: Path,
) -> None:
    """In a process of its own, where megatron takes another Adam than torch's."""
    program = Path(__file__).with_name("waiting_policy.py")
    subprocess.run([sys.executable, str(program), str(tmp_path)], check=True, timeout=300)


def test_gradients_may_lie_in_other_buckets_when_a_checkpoint_is_loaded(
    model: Path, batches: list[Batch], tmp_path: Path
) -> None:
    whole, cut = (off_policy(job(model, data=2, trainer={"overlap": {"gradReduce": on}})) for on in (False, True))
    metrics, weights, _ = run(whole, batches, save=tmp_path / "saved")
    resumed, resumed_weights, _ = run(cut, batches[2:], load=tmp_path / "saved")
    assert resumed == [pytest.approx(m, abs=1e-6) for m in metrics[2:]]
    assert all(abs(weights[n] - resumed_weights[n]).max() < 1e-5 for n in weights)


def test_an_existing_directory_is_not_written_over(model: Path, tmp_path: Path) -> None:
    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine

        with pytest.raises(FileExistsError):
            Engine(job(model), lambda: None).save(tmp_path, alongside=False)

    run_ranks(1, on_a_rank)


def test_saving_leaves_no_process_behind(model: Path, tmp_path: Path) -> None:
    """It would hold the connections of a killed rank open, and the peers would wait for it."""

    def on_a_rank() -> list[str]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(job(model), lambda: None)
        write(engine, tmp_path / "waited")
        write(engine, tmp_path / "alongside", alongside=True)
        return [children.read_text() for children in Path("/proc/self/task").glob("*/children")]

    assert set(run_ranks(1, on_a_rank)[0]) == {""}
