"""A torch_dist directory, from whatever layout, as the beginning of a job in another; and its optimizer as the continuation."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.manifest import ENGINE
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed, column, equal
from trainer.megatron.models import job, make_batch, make_model, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, list[dict[str, int]]] = {
    "qwen2": [
        {"tensor": 2, "pipeline": 2},
        {"pipeline": 2, "virtualPipeline": 2},
        {"context": 2, "tensor": 2},
        {"tensor": 4},
    ],
    "qwen3_moe": [
        {"expert": 2},
        {"pipeline": 2, "tensor": 2},
        {"tensor": 2, "expert": 2, "expertTensor": 1, "pipeline": 2},
        {"expert": 4},
    ],
}
"""Each one's checkpoint is taken up by the next one, the last one's by the first."""


def job_of(model: Path, sizes: dict[str, int], checkpoint: Path | None = None, world: int = 4) -> RLJobSpec:
    """Without a divergence from the starting point, which is another one for a job that starts from a checkpoint."""
    trainer = {"nodes": world, "parallelism": sizes}
    spec = job(model, trainer=trainer, batches={"replay": "/recorded"}, algorithm={})
    return spec.model_copy(
        update={"model": spec.model.model_copy(update={"megatron_checkpoint": checkpoint and str(checkpoint)})}
    )


@pytest.mark.parametrize("kind", extra_but(("qwen3_moe",), LAYOUTS))
def test_weights_are_taken_bit_for_bit_and_optimizers_continue_in_any_layout(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    model = make_model(tmp_path / "model", kind)
    batches = [make_batch(model, step) for step in (1, 2)]
    pairs = list(zip(LAYOUTS[kind], LAYOUTS[kind][1:] + LAYOUTS[kind][:1], strict=True))

    for number, (old, new) in enumerate(pairs):
        checkpoint = tmp_path / f"global_step_{number}"
        old_job, new_job = job_of(model, old), job_of(model, new, checkpoint)
        run_ranks(4, partial(_start_from, checkpoint, old_job, new_job, batches))


def _start_from(checkpoint: Path, old: RLJobSpec, new: RLJobSpec, batches: list[Batch]) -> None:
    """A job that starts from what another one saves."""
    weights, next_loss = _save(old, batches, checkpoint)
    start = _engine(new)
    taken = dict(start.export())
    assert [n for n in weights if not torch.equal(weights[n], taken[n])] == []
    start.load(checkpoint / "megatron")
    assert train_step(start, batches[1])["train/loss"] == pytest.approx(next_loss, abs=1e-6)


def test_weights_are_taken_from_a_checkpoint_of_another_layout(megatron: None, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    batches = [make_batch(model, step) for step in (1, 2)]

    def on_a_rank() -> list[str]:
        weights, _ = _save(job_of(model, {"tensor": 2}, world=2), batches, tmp_path / "global_step_1")
        taken = dict(_engine(job_of(model, {"pipeline": 2}, tmp_path / "global_step_1", world=2)).export())
        return [name for name in weights if not torch.equal(weights[name], taken[name])]

    assert run_ranks(2, on_a_rank) == [[], []]


def _save(spec: RLJobSpec, batches: list[Batch], checkpoint: Path) -> tuple[dict[str, torch.Tensor], float]:
    """Train on the first batch and save; the weights then, and the loss of the second batch."""
    engine = _engine(spec)
    train_step(engine, batches[0])
    if torch.distributed.get_rank() == 0:
        checkpoint.mkdir()
    torch.distributed.barrier()
    writing = engine.save(checkpoint / ENGINE, alongside=False)
    writing.wait()
    writing.finish()
    torch.distributed.barrier()
    weights = {name: tensor.clone() for name, tensor in engine.export()}
    loss = train_step(engine, batches[1])["train/loss"]
    _close()
    return weights, loss


def _engine(spec: RLJobSpec) -> Any:
    from rljob_trainer.megatron.engine import Engine

    return Engine(spec, lambda: None)


def _close() -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_tensor(megatron: None, tmp_path: Path) -> None:
    dense, experts = make_model(tmp_path / "dense", vocabulary=160), make_model(tmp_path / "moe", "mixtral")
    wide, batches = make_model(tmp_path / "wide", vocabulary=192), [make_batch(dense, step) for step in (1, 2)]
    (tmp_path / "empty").mkdir()

    def on_a_rank() -> list[str]:
        _save(job_of(dense, {}, world=1), batches, tmp_path / "global_step_1")
        found = []
        for model, checkpoint in ((experts, "global_step_1"), (wide, "global_step_1"), (dense, "empty")):
            with pytest.raises(ConfigurationError) as caught:
                _engine(job_of(model, {}, tmp_path / checkpoint, world=1))
            assert caught.value.field == "spec.model.megatronCheckpoint"
            found.append(caught.value.rule)
            _close()
        return found

    missing, shape, nothing = run_ranks(1, on_a_rank)[0]
    assert missing.startswith("does not hold policy.decoder.layers.")
    assert shape == "policy.embedding.word_embeddings.weight has the shape (160, 64), the model's (192, 64)"
    assert nothing == "is no torch_dist directory of megatron-core, nor holds one"


def test_critic_and_reference_begin_with_the_networks_of_another_job(megatron: None, tmp_path: Path) -> None:
    model, checkpoint = make_model(tmp_path / "model"), str(tmp_path / "global_step_1")
    ppo = {"advantage": "gae", "kl": {"coefficient": 0.02, "where": "reward"}}
    first = changed(job(model, algorithm=ppo, batches={"replay": "/r"}), critic={"optimizer": {"learningRate": 1e-2}})
    second = changed(first, critic={"megatronCheckpoint": checkpoint}, reference={"megatronCheckpoint": checkpoint})
    batches = [make_batch(model, step) for step in (1, 2)]

    def on_a_rank() -> None:
        _save(first, batches[:1] * 2, tmp_path / "global_step_1")
        trained = _engine(first)
        trained.load(tmp_path / "global_step_1" / "megatron")
        measured = trained.measure(batches[1])
        expected = {name: column(measured, name) for name in ("values", "reference_log_probs", "old_log_probs")}
        _close()
        measured = _engine(second).measure(batches[1])
        found = {name: column(measured, name) for name in ("values", "reference_log_probs")}
        assert equal(found["values"], expected["values"])
        assert equal(found["reference_log_probs"], expected["old_log_probs"])
        assert not equal(expected["reference_log_probs"], expected["old_log_probs"]), "the policy learnt"

    run_ranks(1, on_a_rank)
