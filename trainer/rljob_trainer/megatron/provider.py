"""Completes megatron's TransformerConfig, which megatron-bridge calls a provider, from the spec."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.models.gemma.gemma3_provider import Gemma3ModelProvider
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec as hybrid_spec,
)
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import MegatronModule

from rljob_api.families import FAMILIES
from rljob_api.rules.engine import Violation
from rljob_api.rules.layout import COMPILED
from rljob_api.rules.model import fitting_violations, model_violations
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import NOMINAL, PassCost, Shape
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.compat.families import sandwiched
from rljob_trainer.megatron.compat.minimax_m2 import normed_over_heads
from rljob_trainer.megatron.compat.sparse_attention import indexed
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.plain_torch import layers
from rljob_trainer.megatron.tower import choose_attention
from rljob_trainer.megatron.weight_files import keep_open

HAVE_TE: bool = gpt_layer_specs.HAVE_TE
MODEL = "spec.model.path"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_PLAIN = dict.fromkeys(
    (
        "gradient_accumulation_fusion",
        "persist_layer_norm",
        "masked_softmax_fusion",
        "apply_rope_fusion",
        "bias_dropout_fusion",
        "cross_entropy_loss_fusion",
        "moe_permute_fusion",
    ),
    False,
)
"""Fused kernels that need Transformer Engine or Apex."""

_FUSED = {"gradient_accumulation_fusion": True, "bias_activation_fusion": True}
"""Kernels that need only a GPU. The first one is in compat/environment.py."""
_ON_CPU = {"use_cpu_initialization": True, "deallocate_pipeline_outputs": False}

_EXPERTS = {
    "moe_token_dispatcher_type": "alltoall",  # required with variable lengths, even in dense models (transformer_config.py:1829)
    "moe_router_load_balancing_type": "none",  # the rollouts' routers are not balanced either
    "moe_aux_loss_coeff": 0.0,
    "moe_router_dtype": "fp32",
    "moe_router_bias_update_rate": 0.0,  # nor are the expert biases updated
    "moe_shared_expert_overlap": False,  # needs a CUDA stream of its own
}
"""Defaults for mixture-of-experts models, which transformerConfig may override."""

_ATTENTION = {"attention_backend": AttnBackend.auto}
"""Transformer Engine chooses among the installed backends. megatron-bridge demands flash-attn for Gemma 3, which our images do not have."""

_PIPELINE = {"batch_p2p_sync": False}
"""megatron-core waits for the device after every message between stages by default, to work around a bug of old releases of torch."""

_YARN = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_correction_range_round_to_int": True}


def open_bridge(spec: RLJobSpec) -> AutoBridge:
    """megatron-bridge's bridge for the Hugging Face directory spec.model.path. Tensors are read lazily.

    Raises ConfigurationError when it is not a model directory, or the model is not supported or does not fit the layout.
    """
    path = spec.model.path
    _refuse(model_violations(spec, read_config(path, MODEL)), spec)
    with converting(path, MODEL):
        bridge = AutoBridge.from_hf_pretrained(
            path, dtype=DTYPES[spec.model.dtype], trust_remote_code=spec.model.trust_remote_code
        )
    keep_open(bridge.hf_pretrained, path)
    # again, with defaults for what the file leaves out; some contradict what it says elsewhere, which counts
    _refuse(fitting_violations(spec, bridge.hf_pretrained.config.to_dict()), spec)
    return bridge


def read_config(path: str, field: str) -> dict[str, Any]:
    """The directory's config.json. Raises ConfigurationError, of `field`, when there is none."""
    file = Path(path) / "config.json"
    if not file.is_file():
        fix = "name a Hugging Face model directory that the trainer pods can read"
        raise ConfigurationError(field, path, "holds no config.json", fix)
    return json.loads(file.read_text())


def work_of(spec: RLJobSpec) -> PassCost:
    """What a sequence costs the policy, by which micro-batches are dealt out. Models on other gangs are mostly of its shape."""
    return (Shape.of(read_config(spec.model.path, MODEL)) or NOMINAL).work


@contextmanager
def converting(path: str, field: str) -> Iterator[None]:
    """A context that turns a ValueError of megatron-bridge into a ConfigurationError of `field`."""
    try:
        yield
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        rule = f"megatron-bridge cannot convert this model: {reason}"
        raise ConfigurationError(field, path, rule, f"use one of {', '.join(FAMILIES)}") from error


def _refuse(violations: Iterable[Violation], spec: RLJobSpec) -> None:
    for v in violations:
        raise ConfigurationError(v.field, spec.model.path if v.field == MODEL else v.value, v.rule, v.fix)


def configure(provider: Any, spec: RLJobSpec, layout: Layout, multi_token: bool = False) -> None:
    """Complete the bridge's configuration. Later settings override earlier ones: defaults, then spec.trainer.transformerConfig, then what the trainer
    depends on. `layout`: of the ranks on which this model is. `multi_token`: the layer that guesses the token after the next is part of it.

    Raises ConfigurationError, with megatron's reason, when it refuses the result.
    """
    torch_layers = spec.rollout.exact or not HAVE_TE
    plain = _PLAIN | _torch_layers(provider) if torch_layers else {"apply_rope_fusion": True}
    fused = {} if spec.rollout.exact else _FUSED
    device = fused if torch.cuda.is_available() else _ON_CPU
    ours = _layout(layout, spec) | _recompute(spec) | _numbers(provider, spec) | _multi_token(multi_token)
    given = _given(spec)
    for key, value in (
        _EXPERTS
        | _ATTENTION
        | _PIPELINE
        | plain
        | _rotation(provider)
        | device
        | _gate(provider)
        | given
        | ours
        | _frozen(spec)
    ).items():
        setattr(provider, key, value)
    tower = getattr(provider, "vision_config", None)
    if tower:
        tower.dtype = DTYPES[spec.model.dtype]  # otherwise transformers builds it in the dtype of config.json
    try:
        provider.finalize()
    except (AssertionError, ValueError) as error:
        raise ConfigurationError(
            "spec.trainer.transformerConfig", given, f"megatron-core refuses it: {error}", "change or remove the key"
        ) from error
    _require_pieces(provider, spec)


def provide(provider: Any, parallel: ParallelState) -> list[MegatronModule]:
    """Build the model chunks of this rank's stage: one, or as many as `virtualPipeline` says."""
    on_cpu = parallel.device.type == "cpu"
    modules: list[MegatronModule] = provider.provide_distributed_model(
        wrap_with_ddp=False, mixed_precision_wrapper=None, use_cpu_initialization=on_cpu
    )
    choose_attention(modules, provider.params_dtype)
    return modules


def _given(spec: RLJobSpec) -> dict[str, Any]:
    """spec.trainer.transformerConfig, with the name of an attention backend as a member of megatron's enumeration: a string would silently mean
    auto."""
    given = dict(spec.trainer.transformer_config)
    name = given.get("attention_backend")
    if name is not None:
        if name not in AttnBackend.__members__:
            field, rule = "spec.trainer.transformerConfig.attention_backend", "megatron-core has no such attention"
            raise ConfigurationError(field, name, rule, f"set one of {', '.join(AttnBackend.__members__)}")
        given["attention_backend"] = AttnBackend[name]
    return given


def _torch_layers(provider: Any) -> dict[str, Any]:
    """The layer spec without Transformer Engine. Gemma 3, GLM-4, MiniMax-M2 and models with sparse attention keep their own (compat), and
    those with gated delta nets megatron-core's."""
    kept = (sandwiched, normed_over_heads, indexed, hybrid_spec)
    own = isinstance(provider, Gemma3ModelProvider) or provider.transformer_layer_spec in kept
    return {} if own else {"transformer_layer_spec": layers.block_spec}


def _require_pieces(provider: Any, spec: RLJobSpec) -> None:
    """Raise ConfigurationError when pipeline_model_parallel_layout implies another number of model chunks than virtualPipeline."""
    pieces, said = provider.virtual_pipeline_model_parallel_size or 1, spec.trainer.parallelism.virtual_pipeline
    if pieces != said:
        rule = f"pipeline_model_parallel_layout cuts every stage into {pieces} pieces"
        raise ConfigurationError("spec.trainer.parallelism.virtualPipeline", said, rule, f"set {pieces}")


def _frozen(spec: RLJobSpec) -> dict[str, Any]:
    """megatron-bridge's settings for spec.model.freeze, which only models with a vision tower read."""
    parts = {"vision": "freeze_vision_model", "projector": "freeze_vision_projection"}
    return {parts[part]: True for part in spec.model.freeze}


def _gate(provider: Any) -> dict[str, Any]:
    """The kernel of bias and gate has SiLU only, and megatron-bridge asks for it with any activation."""
    swiglu = provider.gated_linear_unit and provider.activation_func is torch.nn.functional.silu
    return {} if swiglu else {"bias_activation_fusion": False}


def _layout(layout: Layout, spec: RLJobSpec) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "virtual_pipeline_model_parallel_size": layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "sequence_parallel": layout.tensor > 1 and spec.trainer.parallelism.sequence,
        # the interleaved schedule has several messages in flight between two stages, which batched communication would mix up
        "overlap_p2p_comm": layout.virtual_pipeline > 1,
        "batch_p2p_comm": layout.virtual_pipeline == 1,
        "variable_seq_lengths": True,
    }


def _rotation(provider: Any) -> dict[str, Any]:
    """Settings of rotary embeddings: YaRN's parameters that config.json leaves out, with transformers' defaults (modeling_rope_utils.py). The fused
    kernel is switched off for YaRN's scaling of sine and cosine, for interleaved rotation and for multimodal RoPE, which it lacks or was not tested
    for."""
    yarn = provider.position_embedding_type == "yarn"
    interleaved = provider.multi_latent_attention or provider.rotary_interleaved
    if not (yarn or interleaved or provider.position_embedding_type == "mrope"):
        return {}
    usual = _YARN if yarn else {}
    return {key: value for key, value in usual.items() if getattr(provider, key) is None} | {"apply_rope_fusion": False}


def _recompute(spec: RLJobSpec) -> dict[str, Any]:
    r = spec.trainer.recompute
    full = r.granularity == "full"
    unfit = sorted(set(COMPILED) & set(r.modules))
    if unfit and r.granularity == "selective" and not HAVE_TE:
        rule = "needs Transformer Engine, which is not installed in the image"
        raise ConfigurationError("spec.trainer.recompute.modules", unfit[0], rule, "remove it, or use another image")
    return {
        "recompute_granularity": None if r.granularity == "none" else r.granularity,
        "recompute_modules": list(r.modules),
        "recompute_method": r.method if full else None,
        "recompute_num_layers": r.layers if full else None,
    }


def _numbers(provider: Any, spec: RLJobSpec) -> dict[str, Any]:
    dtype = DTYPES[spec.model.dtype]
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "moe_grouped_gemm": bool(provider.num_moe_experts),
        "moe_enable_routing_replay": spec.algorithm.rollout_correction.router_replay != "none",
        # the bridge pads the vocabulary with zeros, but never removes padding
        "should_pad_vocab": provider.vocab_size % spec.trainer.parallelism.tensor != 0,
        "make_vocab_size_divisible_by": 1,
        # Gradients are summed over tokens, micro-batches and ranks, because the loss weights contain the global denominator (losses.token_weights).
        # Otherwise megatron would divide by the number of micro-batches, and DDP by that of ranks (schedules.py, forward_step_calc_loss).
        "calculate_per_token_loss": True,
        "finalize_model_grads_func": reduce_gradients,
    }


def _multi_token(trained: bool) -> dict[str, Any]:
    """The layer gives the policy no gradient (multi_token.py)."""
    return {"mtp_num_layers": 1, "mtp_detach_heads": True} if trained else {"mtp_num_layers": None}


def reduce_gradients(models: list[torch.nn.Module], _tokens: torch.Tensor | None = None, **kwargs: Any) -> None:
    """megatron's finalize_model_grads, without its division by the number of tokens. Gradients must be reduced once only, after all passes."""
    finalize_model_grads(models, None, **kwargs)
