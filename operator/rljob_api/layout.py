"""Arithmetic of parallel layouts and batches: the one place that divides ranks, layers, heads and samples.

Rules are megatron-core's own (core/parallel_state.py, core/transformer/transformer_config.py of 0.19), checked before a process exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.violation import Violation

PARALLELISM = "spec.trainer.parallelism"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks of the trainer gang are divided."""

    world: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual_pipeline: int = 1

    @staticmethod
    def of(spec: RLJobSpec) -> "Layout":
        t, p = spec.trainer, spec.trainer.parallelism
        return Layout(
            t.nodes * t.processes_per_node,
            p.tensor,
            p.pipeline,
            p.context,
            p.expert,
            p.expert_tensor or p.tensor,
            p.virtual_pipeline,
        )

    @property
    def model(self) -> int:
        """Ranks that work on one micro-batch."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Copies of the model, each with micro-batches of its own. The layout must divide (see `layout_violations`)."""
        return self.world // self.model

    def __str__(self) -> str:
        """Sizes of 1 are left out beyond the first three: `tp2-pp1-dp1`, `tp2-pp1-dp1-cp2`."""
        further = {"cp": self.context, "ep": self.expert, "vpp": self.virtual_pipeline}
        if self.expert > 1 and self.expert_tensor != self.tensor:
            further["etp"] = self.expert_tensor
        parts = [f"tp{self.tensor}", f"pp{self.pipeline}", f"dp{self.data}"]
        return "-".join(parts + [f"{k}{v}" for k, v in further.items() if v > 1 or k == "etp"])


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many samples move, counted globally."""

    samples_per_step: int
    prompts_per_mini_batch: int
    samples_per_mini_batch: int
    optimizer_steps: int
    """Of the whole job."""

    @staticmethod
    def of(spec: RLJobSpec) -> "Amounts":
        t = spec.train
        prompts = t.prompts_per_step // t.mini_batches
        return Amounts(
            t.prompts_per_step * t.samples_per_prompt, prompts, prompts * t.samples_per_prompt, t.steps * t.mini_batches * t.epochs_per_step
        )


def layout_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Ranks against the parallel sizes."""
    layout, t = Layout.of(spec), spec.trainer
    if layout.world % layout.model:
        yield Violation(
            PARALLELISM,
            f"tensor {layout.tensor} x pipeline {layout.pipeline}",
            f"nodes x processesPerNode = {t.nodes} x {t.processes_per_node} = {layout.world} ranks is not divisible by "
            f"tensor x pipeline = {layout.model}",
            f"make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of {layout.model}, or lower tensor or pipeline",
        )
    if t.device == "gpu" and layout.tensor > t.processes_per_node:
        yield Violation(
            f"{PARALLELISM}.tensor",
            str(layout.tensor),
            f"tensor-parallel ranks exchange every layer's activations and must share a node, which has {t.processes_per_node} ranks",
            "raise spec.trainer.processesPerNode or lower tensor and raise pipeline",
        )


def batch_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Prompts against mini-batches, tokens against the micro-batch budget."""
    t = spec.train
    if t.prompts_per_step % t.mini_batches:
        yield Violation(
            "spec.train.miniBatches",
            str(t.mini_batches),
            f"promptsPerStep = {t.prompts_per_step} is not divisible by it: a group of samples is never cut",
            "choose a divisor of spec.train.promptsPerStep",
        )
    longest = spec.data.max_prompt_tokens + spec.rollout.sampling.max_tokens
    if longest > t.tokens_per_micro_batch:
        yield Violation(
            "spec.train.tokensPerMicroBatch",
            str(t.tokens_per_micro_batch),
            f"the longest sample has maxPromptTokens + maxTokens = {longest} tokens and is never cut",
            f"raise it to at least {longest}, or lower spec.data.maxPromptTokens or spec.rollout.sampling.maxTokens",
        )


def model_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """The parallel sizes against a Hugging Face config.json (heads, key-value groups, feed-forward width, layers)."""
    layout = Layout.of(spec)
    heads, layers = config.get("num_attention_heads"), config.get("num_hidden_layers")
    groups = config.get("num_key_value_heads") or heads
    for key, size in (("num_attention_heads", heads), ("intermediate_size", config.get("intermediate_size"))):
        if size and size % layout.tensor:
            yield _indivisible("tensor", layout.tensor, key, size)
    if groups and groups % layout.tensor and layout.tensor % groups:
        yield Violation(
            f"{PARALLELISM}.tensor",
            str(layout.tensor),
            f"num_key_value_heads = {groups} of the model must be a multiple or a divisor of it",
            f"choose a divisor or a multiple of {groups}",
        )
    if layers and layers % layout.pipeline:
        yield _indivisible("pipeline", layout.pipeline, "num_hidden_layers", layers)


def _indivisible(name: str, size: int, key: str, value: int) -> Violation:
    return Violation(
        f"{PARALLELISM}.{name}",
        str(size),
        f"{key} = {value} of the model is not divisible by it",
        f"choose a divisor of {value}",
    )
