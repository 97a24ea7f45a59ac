"""The plan of a device's memory by phase: what it refuses, how it reads, and what is measured beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from api.specs import make_spec
from rljob_api.sizing.memory import PhaseMemory, PhaseParts
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.memory import MemoryPlan, Meter, device_bytes

GIB = 2**30
QWEN_1_5B = {
    "num_hidden_layers": 28,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


COLOCATED = {"placement": "colocated"}


def spec_of(directory: Path, rollout: dict[str, Any] | None = None, **trainer: Any) -> RLJobSpec:
    (directory / "config.json").write_text(json.dumps(QWEN_1_5B))
    model = {"path": str(directory), "dtype": "bfloat16"}
    return make_spec(trainer={"device": "gpu"} | trainer, model=model, rollout=rollout or {})


def test_a_server_that_leaves_the_trainer_no_room_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MemoryPlan.of(spec_of(tmp_path, COLOCATED), 48 * GIB)
    assert str(refused.value) == (
        "spec.rollout.vllmArgs.gpu-memory-utilization = 0.5: in `generate` a GPU has to hold 25.9 GiB of models and optimizers and "
        "24.0 of the server, and has 48.0; lower it, or use more ranks (spec.trainer.nodes, parallelism.tensor or pipeline), "
        "or set spec.trainer.offload"
    )


def test_a_save_that_brings_moments_back_beside_the_server_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, COLOCATED, offload={"optimizer": True, "gradients": True})
    with pytest.raises(ConfigurationError, match="in `save` a GPU has to hold 20.1 GiB"):
        MemoryPlan.of(spec, 40 * GIB)
    assert MemoryPlan.of(spec, 42 * GIB).phases


def test_what_is_only_estimated_is_not_refused_but_said(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    train = next(p for p in MemoryPlan.of(spec, 48 * GIB).phases if p.name == "train")
    assert "train may not fit, by the estimate" in MemoryPlan.of(spec, train.total - 1).table({})


def test_models_that_do_not_fit_by_themselves_want_another_layout(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, offload={"optimizer": True})
    with pytest.raises(
        ConfigurationError, match=r"spec.trainer.parallelism = tp1-pp1-dp1: in `train` a GPU has to hold 25.9 GiB"
    ):
        MemoryPlan.of(spec, 25 * GIB)


def test_a_model_of_unknown_shape_is_not_planned(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert MemoryPlan.of(spec, GIB).phases == []


def test_the_table_stands_beside_what_was_measured() -> None:
    generate, train = PhaseParts(weights=26 * GIB, server=63 * GIB), PhaseParts(weights=26 * GIB, activations=45 * GIB)
    planned = [PhaseMemory("generate", 26 * GIB, generate), PhaseMemory("train", 26 * GIB, train)]
    assert MemoryPlan(planned, 140 * GIB).table({"train": 67.2 * GIB}).splitlines() == [
        "memory by phase on a device of 140.0 GiB",
        "phase          state  estimate    server   planned  measured",
        "generate        26.0       0.0      63.0      89.0         -",
        "train           26.0      45.0       0.0      71.0      67.2",
    ]


def test_the_peak_of_a_phase_is_its_own() -> None:
    """On CPU: the resident set."""
    meter = Meter()
    meter.enter("generate")
    before = torch.ones(10)
    meter.enter("train")
    passing = torch.ones(64 * 2**20)
    del passing
    meter.enter("sync")
    del before
    meter.enter("generate")
    assert meter.peaks["train"] - meter.peaks["generate"] > 200 * 2**20
    assert meter.peaks["train"] - meter.peaks["sync"] > 200 * 2**20
    assert meter.peaks["train"] < device_bytes()
