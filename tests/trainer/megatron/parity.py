"""Layouts that have to train alike, and how far apart they came."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import StepBatch
from trainer.megatron.models import job
from trainer.ranks import run_ranks


@dataclass(frozen=True)
class Case:
    """A row of the table in docs/parallelism.md."""

    name: str
    world: int
    sizes: dict[str, Any] = field(default_factory=dict)
    """spec.trainer.parallelism"""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further keys of spec.trainer."""
    model: str = "qwen2"
    dtype: str = "float32"
    loss: float = 2e-6
    """Largest |loss - loss of one rank| that is allowed."""
    weights: float = 1e-5
    """Likewise of a weight after the last step."""

    @property
    def base(self) -> str:
        """The case that it is compared with."""
        return f"one rank, {self.model}, {self.dtype}"

    def spec(self, model: Path, **train: Any) -> RLJobSpec:
        return job(
            model, dtype=self.dtype, trainer={"nodes": self.world, "parallelism": self.sizes} | self.trainer, **train
        )


@dataclass(frozen=True)
class Result:
    """Of all steps of a case."""

    losses: list[float]
    weights: dict[str, torch.Tensor]

    def difference(self, other: "Result") -> tuple[float, float]:
        """Largest |loss - other loss| and |weight - other weight|."""
        losses = max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))
        assert self.weights.keys() == other.weights.keys()
        return losses, max(float((w.float() - other.weights[n].float()).abs().max()) for n, w in self.weights.items())


def run(cases: list[Case], models: dict[str, Path], batches: dict[str, list[StepBatch]]) -> dict[str, Result]:
    """All cases of one world size in one gang, one after the other; all ranks have to report the same losses."""

    def on_a_rank() -> list[tuple[list[float], dict[str, Any] | None]]:
        return [_train(case.spec(models[case.model], batches={"replay": "/r"}), batches[case.model]) for case in cases]

    ranks = run_ranks(cases[0].world, on_a_rank)
    for rank in ranks:
        assert [losses for losses, _ in rank] == [losses for losses, _ in ranks[0]]
    return {case.name: Result(*found) for case, found in zip(cases, ranks[0], strict=True)}


def _train(spec: RLJobSpec, batches: list[StepBatch]) -> tuple[list[float], dict[str, Any] | None]:
    from megatron.core import parallel_state

    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    losses = [engine.train_step(batch)["train/loss"] for batch in batches]
    weights = {name: tensor.clone() for name, tensor in engine.export()}
    parallel_state.destroy_model_parallel()
    return losses, weights if torch.distributed.get_rank() == 0 else None


MOE = "qwen3_moe"
FULL = {"recompute": {"granularity": "full"}}
BLOCK = {"recompute": {"granularity": "full", "method": "block", "layers": 1}}
SELECTIVE = {"recompute": {"granularity": "selective", "modules": ["core_attn", "mlp"]}}
EXPERTS = {"recompute": {"granularity": "selective", "modules": ["moe_act", "layernorm"]}}
OVERLAP = {"overlap": {"gradReduce": True, "paramGather": True}}
CASES = [
    Case("PP2", 2, {"pipeline": 2}),
    Case("PP2 VPP2", 2, {"pipeline": 2, "virtualPipeline": 2}),
    Case("TP2", 2, {"tensor": 2}),
    Case("TP2 without sequence parallelism", 2, {"tensor": 2, "sequence": False}),
    Case("DP2", 2),
    Case("DP2, overlap", 2, trainer=OVERLAP),
    Case("CP2", 2, {"context": 2}),
    Case("TP2, full recompute", 2, {"tensor": 2}, FULL),
    Case("PP2, block recompute", 2, {"pipeline": 2}, BLOCK),
    Case("CP2, selective recompute", 2, {"context": 2}, SELECTIVE),
    Case("EP2", 2, {"expert": 2}, model=MOE),
    Case("TP2 EP2 ETP1", 2, {"tensor": 2, "expert": 2, "expertTensor": 1}, model=MOE),
    Case("TP2 ETP2", 2, {"tensor": 2}, model=MOE),
    Case("EP2, selective recompute", 2, {"expert": 2}, EXPERTS, model=MOE),
    Case("TP2 PP2", 4, {"tensor": 2, "pipeline": 2}),
    Case("CP2 TP2", 4, {"context": 2, "tensor": 2}),
    Case("CP2 PP2", 4, {"context": 2, "pipeline": 2}),
    Case("PP2 VPP2 DP2, overlap", 4, {"pipeline": 2, "virtualPipeline": 2}, OVERLAP),
    Case("EP2 PP2", 4, {"expert": 2, "pipeline": 2}, model=MOE),
    Case("EP2 CP2 DP2", 4, {"expert": 2, "context": 2}, model=MOE),
    Case("bfloat16 TP2 PP2", 4, {"tensor": 2, "pipeline": 2}, dtype="bfloat16", loss=2e-2, weights=2e-2),
    Case("TP2 PP2 CP2", 8, {"tensor": 2, "pipeline": 2, "context": 2}),
]
BASES = [
    Case(name, 1, model=model, dtype=dtype)
    for name, model, dtype in sorted({(c.base, c.model, c.dtype) for c in CASES})
]
