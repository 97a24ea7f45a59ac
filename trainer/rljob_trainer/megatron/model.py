"""The policy: from a Hugging Face directory to a megatron model in this rank's place, with its optimizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module

from rljob_api.layout import Amounts
from rljob_api.model_rules import model_violations
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron import layers
from rljob_trainer.megatron.parallel import Place

HAVE_TE: bool = gpt_layer_specs.HAVE_TE
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output_layer.weight")


class Policy:
    """One model, wrapped for data parallelism, and the bridge that knows its Hugging Face form."""

    def __init__(self, spec: RLJobSpec, place: Place) -> None:
        self.bridge = _bridge(spec)
        provider = self.bridge.to_megatron_provider(load_weights=True)
        _refuse_what_cannot_be_cut(spec, self.bridge, provider)
        _configure(provider, spec)
        cpu = place.device.type == "cpu"
        self.module = provider.provide_distributed_model(
            wrap_with_ddp=False, mixed_precision_wrapper=None, use_cpu_initialization=cpu
        )[0]
        self.vocabulary: int = provider.vocab_size
        self.config = provider
        wrapped = Float16Module(provider, self.module) if provider.bf16 else self.module
        self.ddp = DistributedDataParallel(
            provider, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True), wrapped
        )

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full tensors in the model's dtype, one at a time, on every rank. Collective: every rank must drain it."""
        padded = self._padded_names()
        for name, tensor in self.bridge.export_hf_weights([self.module], cpu=False, show_progress=False):
            yield name, tensor[: self.vocabulary] if name in padded else tensor

    def _padded_names(self) -> set[str]:
        """Hugging Face names of the tensors with a row per token, when tensor parallelism made us add rows."""
        if not self.config.should_pad_vocab:
            return set()
        tasks = self.bridge.get_conversion_tasks([self.module])
        return {str(t.mapping.hf_param) for t in tasks if t.global_param_name in _VOCABULARY_WEIGHTS}


def build_optimizer(spec: RLJobSpec, ddp: DistributedDataParallel) -> tuple[Any, OptimizerParamScheduler]:
    """AdamW on the distributed optimizer, and the schedule: linear warm-up, then constant."""
    o = spec.train.optimizer
    bf16 = spec.model.dtype == "bfloat16"
    config = OptimizerConfig(
        optimizer="adam",
        lr=o.learning_rate,
        min_lr=o.learning_rate,
        weight_decay=o.weight_decay,
        adam_beta1=o.beta1,
        adam_beta2=o.beta2,
        adam_eps=o.epsilon,
        clip_grad=o.clip_grad,
        bf16=bf16,
        params_dtype=DTYPES[spec.model.dtype],
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(config, [ddp])
    steps = max(Amounts.of(spec).optimizer_steps, o.warmup_steps + 1)
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=o.learning_rate,
        min_lr=o.learning_rate,
        lr_warmup_steps=o.warmup_steps,
        lr_decay_steps=steps,
        lr_decay_style="constant",
        start_wd=o.weight_decay,
        end_wd=o.weight_decay,
        wd_incr_steps=steps,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # after a resume the spec's numbers hold, not the checkpoint's; the count of steps is the checkpoint's
    )
    return optimizer, scheduler


def _bridge(spec: RLJobSpec) -> AutoBridge:
    path = spec.model.path
    if not (Path(path) / "config.json").is_file():
        raise ConfigurationError(
            "spec.model.path",
            path,
            "holds no config.json",
            "name a Hugging Face model directory that the trainer pods can read",
        )
    try:
        return AutoBridge.from_hf_pretrained(
            path, dtype=DTYPES[spec.model.dtype], trust_remote_code=spec.model.trust_remote_code
        )
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            "spec.model.path",
            path,
            f"megatron-bridge cannot convert this model: {reason}",
            "use a supported architecture",
        ) from error


def _refuse_what_cannot_be_cut(spec: RLJobSpec, bridge: AutoBridge, provider: Any) -> None:
    """What only shows with the model in hand."""
    for v in model_violations(spec, bridge.hf_pretrained.config.to_dict()):
        raise ConfigurationError(v.field, v.value, v.rule, v.fix)
    if provider.num_moe_experts:
        raise ConfigurationError(
            "spec.model.path", spec.model.path, "mixture-of-experts models are not supported yet", "use a dense model"
        )


def _configure(provider: Any, spec: RLJobSpec) -> None:
    """Complete the bridge's TransformerConfig: first what the spec passes through, then what is ours to say."""
    parallelism, dtype = spec.trainer.parallelism, DTYPES[spec.model.dtype]
    ours: dict[str, Any] = {
        "tensor_model_parallel_size": parallelism.tensor,
        "pipeline_model_parallel_size": parallelism.pipeline,
        "sequence_parallel": parallelism.tensor > 1 and parallelism.sequence,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "should_pad_vocab": provider.vocab_size % parallelism.tensor
        != 0,  # the bridge fills rows up with zeros, but takes none away
        "make_vocab_size_divisible_by": 1,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # transformer_config.py:1829 wants it with variable lengths, in dense models too
        # Gradients are the sum over tokens, micro-batches and ranks; the loss carries its global denominator.
        # Otherwise megatron divides by the number of micro-batches and DDP by that of ranks (schedules.py forward_step_calc_loss).
        "calculate_per_token_loss": True,
        "finalize_model_grads_func": _finalize,
    }
    plain = {} if HAVE_TE else _PLAIN | {"transformer_layer_spec": layers.block_spec}
    cpu = {} if torch.cuda.is_available() else {"use_cpu_initialization": True, "deallocate_pipeline_outputs": False}
    for key, value in (plain | cpu | spec.trainer.transformer_config | ours).items():
        setattr(provider, key, value)
    provider.finalize()


_PLAIN = dict.fromkeys(
    (
        "gradient_accumulation_fusion",
        "persist_layer_norm",
        "masked_softmax_fusion",
        "apply_rope_fusion",
        "bias_dropout_fusion",
        "cross_entropy_loss_fusion",
    ),
    False,
)
"""Fused kernels that come with Transformer Engine or Apex."""


def _finalize(models: list[torch.nn.Module], _tokens: torch.Tensor | None, **kwargs: Any) -> None:
    """megatron's reduction of gradients, without its division by the number of tokens."""
    finalize_model_grads(models, None, **kwargs)
