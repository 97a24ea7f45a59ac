"""Layouts that have to train alike, and how far apart they came."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed
from trainer.megatron.models import job, train_step
from trainer.ranks import run_ranks


@dataclass(frozen=True)
class Setting:
    """What a layout and one rank have in common, when they are compared."""

    name: str
    model: str = "qwen2"
    dtype: str = "float32"
    train: dict[str, Any] = field(default_factory=dict)
    """Arguments of `job`."""
    config: dict[str, Any] = field(default_factory=dict)
    """spec.trainer.transformerConfig"""
    lora: dict[str, Any] | None = None
    """spec.model.lora"""


@dataclass(frozen=True)
class Case:
    """A row of the table in docs/parallelism.md."""

    name: str
    world: int
    sizes: dict[str, Any] = field(default_factory=dict)
    """spec.trainer.parallelism"""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further keys of spec.trainer."""
    setting: Setting = field(default_factory=lambda: DENSE)
    loss: float = 9.5e-7
    """Largest |loss - loss of one rank| that is allowed."""
    weights: float = 1e-5
    """Likewise of a weight after the last step."""

    def spec(self, models: dict[str, Path]) -> RLJobSpec:
        s = self.setting
        trainer = {"nodes": self.world, "parallelism": self.sizes, "transformerConfig": s.config} | self.trainer
        replayed = {
            "batches": {"replay": "/recorded"}
        }  # drawn by the starting model: they do not fit the policy of later steps
        optimizer = {
            "learningRate": 1e-3,
            "epsilon": 1e-6,
        }  # Adam makes weights of the rounding of gradients near 0 with less
        spec = job(
            models[s.model],
            dtype=s.dtype,
            trainer=trainer,
            **{"optimizer": optimizer, "miniBatches": 2, **replayed, **s.train},
        )
        return changed(spec, model={"lora": s.lora})


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


def run(case: Case, models: dict[str, Path], batches: dict[str, list[Batch]]) -> Result:
    """All ranks have to report the same losses."""
    first, *others = run_ranks(case.world, lambda: _train(case.spec(models), batches[case.setting.model]))
    assert all(losses == first[0] for losses, _ in others)
    return Result(*first)


def _train(spec: RLJobSpec, batches: list[Batch]) -> tuple[list[float], dict[str, Any] | None]:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    losses = [train_step(engine, batch)["train/loss"] for batch in batches]
    weights = {name: tensor.clone() for name, tensor in engine.export()}
    return losses, weights if torch.distributed.get_rank() == 0 else None


DENSE = Setting("Qwen2")
BF16 = Setting("Qwen2, bfloat16", dtype="bfloat16")
GSPO = Setting(
    "Qwen2, GSPO and sequence-level correction",
    train={
        "algorithm": {
            "loss": "gspo",
            "aggregation": "sequenceMeanTokenMean",
            "clip": {"low": 3e-4, "high": 4e-4},
            "rolloutCorrection": {"importanceSampling": "sequence", "reject": {"level": "sequence"}},
        }
    },
)
MOE = Setting("Qwen3-MoE", model="qwen3_moe")
BALANCED = Setting(
    "Qwen3-MoE, auxiliary loss",
    model="qwen3_moe",
    train={
        "tokensPerMicroBatch": 96,
        "miniBatches": 1,
    },  # the same micro-batches on one rank and on two: this loss depends on them
    config={"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.1},
)
LORA = Setting("Qwen2, LoRA", lora={"rank": 4, "alpha": 8})
PARTS = Setting(
    "Qwen2, LoRA of parts", lora={"rank": 4, "alpha": 8, "targets": ["linear_q", "linear_v", "linear_fc1_up"]}
)
MATRICES = Setting("Qwen2, LoRA of gate and up", lora={"rank": 4, "alpha": 8, "targets": ["linear_fc1"]})
GLM = Setting(
    "GLM-4, LoRA", model="glm4", lora={"rank": 4, "alpha": 8, "targets": ["linear_qkv", "linear_proj", "linear_fc2"]}
)
GEMMA = Setting("Gemma 3, LoRA", model="gemma3_text", lora={"rank": 4, "alpha": 8})
MOE_LORA = Setting("Qwen3-MoE, LoRA", model="qwen3_moe", lora={"rank": 4, "alpha": 8})
MOE_PARTS = Setting(
    "Qwen3-MoE, LoRA of parts",
    model="qwen3_moe",
    lora={"rank": 4, "alpha": 8, "targets": ["linear_q", "linear_v", "linear_proj"]},
)
PHI = Setting("Phi-3, LoRA", model="phi3", lora={"rank": 4, "alpha": 8})
LATENT = Setting("DeepSeek-V3, LoRA", model="deepseek_v3", lora={"rank": 4, "alpha": 8})
MINIMAX = Setting("MiniMax-M2", model="minimax_m2")
KIMI = Setting("Kimi K2", model="kimi_k2")
SPARSE = Setting("GLM-5", model="glm_moe_dsa")
FULL = {"recompute": {"granularity": "full"}}
BLOCK = {"recompute": {"granularity": "full", "method": "block", "layers": 1}}
SELECTIVE = {"recompute": {"granularity": "selective", "modules": ["core_attn", "mlp"]}}
EXPERTS = {"recompute": {"granularity": "selective", "modules": ["core_attn", "moe"]}}
UNEVEN = {"transformerConfig": {"num_layers_in_first_pipeline_stage": 3}}
ACCOUNTED = {
    "transformerConfig": {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
}
WRITTEN = {"transformerConfig": {"pipeline_model_parallel_layout": "Et|t|tt|L"}}
OVERLAP = {"overlap": {"gradReduce": True, "paramGather": True}}
CASES = [
    Case("PP2", 2, {"pipeline": 2}),
    Case("PP2 VPP2", 2, {"pipeline": 2, "virtualPipeline": 2}),
    Case("PP2 of 3 and 1 layers", 2, {"pipeline": 2}, UNEVEN),
    Case("PP2 VPP2 of 3 and 1 layers, as written", 2, {"pipeline": 2, "virtualPipeline": 2}, WRITTEN),
    Case("TP2", 2, {"tensor": 2}),
    Case("TP2 without sequence parallelism", 2, {"tensor": 2, "sequence": False}),
    Case("DP2", 2),
    Case("DP2, overlap", 2, trainer=OVERLAP),
    Case("CP2", 2, {"context": 2}),
    Case("CP2 of whole responses", 2, {"context": 2}, setting=GSPO),
    Case("TP2, full recompute", 2, {"tensor": 2}, FULL),
    Case("PP2, block recompute", 2, {"pipeline": 2}, BLOCK),
    Case("CP2, selective recompute", 2, {"context": 2}, SELECTIVE),
    Case("EP2", 2, {"expert": 2}, setting=MOE),
    Case("EP2 with a balanced router", 2, {"expert": 2}, setting=BALANCED),
    Case("TP2 EP2 ETP1", 2, {"tensor": 2, "expert": 2, "expertTensor": 1}, setting=MOE),
    Case("TP2 ETP2", 2, {"tensor": 2}, setting=MOE),
    Case("EP2, selective recompute", 2, {"expert": 2}, EXPERTS, setting=MOE),
    Case("TP2 with norms of all heads", 2, {"tensor": 2}, setting=MINIMAX),
    Case("TP4 with norms of all heads, two ranks for a head of keys", 4, {"tensor": 4}, setting=MINIMAX),
    Case("TP2 with latent attention", 2, {"tensor": 2}, setting=KIMI),
    Case("TP2 with sparse attention", 2, {"tensor": 2}, setting=SPARSE),
    Case("CP2 with sparse attention, full recompute", 2, {"context": 2}, FULL, setting=SPARSE),
    Case(
        "EP2 PP2 with sparse attention, selective recompute", 4, {"expert": 2, "pipeline": 2}, EXPERTS, setting=SPARSE
    ),
    Case("PP3 of 1, 2 and 1 layers, accounted", 3, {"pipeline": 3}, ACCOUNTED),
    Case("TP2 PP2", 4, {"tensor": 2, "pipeline": 2}),
    Case("CP2 TP2", 4, {"context": 2, "tensor": 2}),
    Case("CP2 PP2", 4, {"context": 2, "pipeline": 2}),
    Case("PP2 VPP2 DP2, overlap", 4, {"pipeline": 2, "virtualPipeline": 2}, OVERLAP),
    Case("EP2 PP2", 4, {"expert": 2, "pipeline": 2}, setting=MOE),
    Case("EP2 CP2 DP2", 4, {"expert": 2, "context": 2}, setting=MOE),
    Case("bfloat16 TP2 PP2", 4, {"tensor": 2, "pipeline": 2}, setting=BF16, loss=4.6e-3, weights=1e-2),
    Case("LoRA, PP2", 2, {"pipeline": 2}, setting=LORA),
    Case("LoRA, PP2 VPP2", 2, {"pipeline": 2, "virtualPipeline": 2}, setting=LORA),
    Case("LoRA, TP2", 2, {"tensor": 2}, setting=LORA),
    Case("LoRA, TP2 without sequence parallelism", 2, {"tensor": 2, "sequence": False}, setting=LORA),
    Case("LoRA, DP2, overlap", 2, trainer=OVERLAP, setting=LORA),
    Case("LoRA, CP2", 2, {"context": 2}, setting=LORA),
    Case("LoRA, TP2, full recompute", 2, {"tensor": 2}, FULL, setting=LORA),
    Case("LoRA of gate and up, DP2, selective recompute", 2, {}, SELECTIVE, setting=MATRICES),
    Case("LoRA, TP2 PP2", 4, {"tensor": 2, "pipeline": 2}, setting=LORA),
    Case("LoRA of parts, TP2", 2, {"tensor": 2}, setting=PARTS),
    Case("LoRA of parts, CP2, full recompute", 2, {"context": 2}, FULL, setting=PARTS),
    Case("LoRA before a norm, TP2", 2, {"tensor": 2}, setting=GLM),
    Case("LoRA before a norm, TP2 without sequence parallelism", 2, {"tensor": 2, "sequence": False}, setting=GEMMA),
    Case("LoRA, EP2", 2, {"expert": 2}, setting=MOE_LORA),
    Case("LoRA, TP2 ETP2", 2, {"tensor": 2}, setting=MOE_LORA),
    Case("LoRA, TP2 EP2 ETP1", 2, {"tensor": 2, "expert": 2, "expertTensor": 1}, setting=MOE_LORA),
    Case("LoRA of parts, EP2, selective recompute", 2, {"expert": 2}, EXPERTS, setting=MOE_PARTS),
    Case("LoRA, EP2 PP2", 4, {"expert": 2, "pipeline": 2}, setting=MOE_LORA),
    Case("LoRA next to latent attention, EP2", 2, {"expert": 2}, setting=LATENT),
    Case("LoRA next to latent attention, TP2 ETP2", 2, {"tensor": 2}, setting=LATENT),
    Case("LoRA of fused matrices, TP2", 2, {"tensor": 2}, setting=PHI),
    Case("LoRA of fused matrices, TP2 PP2", 4, {"tensor": 2, "pipeline": 2}, setting=PHI),
    Case("TP2 PP2 CP2", 8, {"tensor": 2, "pipeline": 2, "context": 2}),
]
