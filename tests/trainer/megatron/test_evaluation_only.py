"""A job that only evaluates has the policy of a checkpoint, and nothing that training needs."""

from pathlib import Path
from typing import Any

import pytest

from extra import extra_but
from rljob_api.spec import RLJobSpec
from trainer.megatron.models import make_batch, make_model, ranks_of, train_step
from trainer.megatron.test_checkpoint import write
from trainer.megatron.test_resume import JOBS, VOCABULARY, spec_of
from trainer.ranks import run_ranks

LAYOUTS = {
    "GRPO": ("tp1-pp1-dp2", "tp2-pp1-dp1"),
    "PPO": ("tp1-pp1-dp2", "tp1-pp2-dp1"),
    "MoE": ("tp1-pp1-dp2-ep2", "tp1-pp1-dp2-ep2"),
    "MoE, LoRA": ("tp1-pp1-dp2-ep2", "tp2-pp1-dp1"),
    "LoRA": ("tp2-pp1-dp1", "tp1-pp1-dp1"),
}
"""In which a job of test_resume.JOBS is saved, and in which it is evaluated."""


def evaluating(spec: RLJobSpec) -> RLJobSpec:
    """The same job, which only evaluates, with everything offloaded."""
    evaluation = spec.evaluation.model_copy(update={"only": True})
    everything = {"parameters": True, "gradients": True, "optimizer": True}
    offload = spec.trainer.offload.model_copy(update=everything)
    trainer = spec.trainer.model_copy(update={"offload": offload})
    return spec.model_copy(update={"evaluation": evaluation, "trainer": trainer})


@pytest.mark.parametrize("name", extra_but(("PPO", "MoE, LoRA"), LAYOUTS))
def test_a_checkpoint_is_measured_in_any_layout_without_gradients_and_optimizer(
    megatron: None, tmp_path: Path, name: str
) -> None:
    model = make_model(tmp_path / "model", JOBS[name][0], tied=False, vocabulary=VOCABULARY)
    batch, saved = make_batch(model), tmp_path / "saved"
    before, after = (spec_of(name, model, layout) for layout in LAYOUTS[name])

    def trained() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(before, lambda: None)
        train_step(engine, batch)
        write(engine, saved)
        log_probs = [measured.numpy() for measured in engine.log_probs(batch.samples)]
        return {name: tensor.clone().numpy() for name, tensor in engine.export()}, log_probs

    def evaluated() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(evaluating(after), lambda: None)
        engine.load(saved)
        parameters = [p for module in engine._model.modules for p in module.parameters()]
        assert not any(p.requires_grad or hasattr(p, "main_grad") for p in parameters)
        assert (engine._policy.optimizer, engine._critic, engine._reference) == (None, None, None)
        assert sum(p.untyped_storage().nbytes() for p in parameters) == 0, "offloaded while it rests"
        log_probs = [measured.numpy() for measured in engine.log_probs(batch.samples)]
        return {name: tensor.clone().numpy() for name, tensor in engine.export()}, log_probs, engine.backend

    (weights, log_probs), *_ = run_ranks(ranks_of(before), trained)
    (found, measured, backend), *_ = run_ranks(ranks_of(after), evaluated)
    assert found.keys() == weights.keys()
    assert all((found[name] == weights[name]).all() for name in found)
    assert max(abs(one - two).max() for one, two in zip(measured, log_probs, strict=True)) < 1e-5
    assert "no optimizer" in backend
