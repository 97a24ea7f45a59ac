"""A model's config.json against the servers that generate with it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.config_json import ROPES
from rljob_api.families import FAMILIES, family_of, has_latent_attention, language_of, rope_of
from rljob_api.rules.engine import Violation
from rljob_api.rules.foreign_keys import KEYS
from rljob_api.rules.served_tower import tower_violations, tower_widths
from rljob_api.rules.widths import feed_forward, heads_of, undivided
from rljob_api.sizing.replica import longest_context
from rljob_api.sizing.shape import experts_of
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

CPU_LATENTS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
"""Those of DeepSeek and Kimi."""
OWN: dict[str, tuple[Any, ...]] = {
    "compression_config": (),
    "head_dtype": ("model",),
    "is_encoder_decoder": (False,),
    "is_mm_prefix_lm": (False,),
    "rswa_window": (),
    "sliding_window": (0,),
}
"""Keys of config.json that vLLM 0.32 follows in families in which trainer and transformers do not, and values with which it computes as without them:
weights that it quantizes as they arrive; the type of numbers of the output layer (model_executor/layers/logits_processor.py); an encoder, without
which a server ends at its first request; on GPUs attention in both directions within an image, and a window behind the prompt, of 0 tokens as well
(v1/attention/backends); and a window for each layer that has no other (config/model.py, `get_sliding_window`)."""
WINDOWS_ONLY_IF_USED = ("qwen2", "qwen2_5_vl", "qwen3", "qwen3_moe")
"""Families in which transformers' configuration, which vLLM takes, drops `sliding_window` without `use_sliding_window`. Qwen2.5's files have one."""
OWN_OF_ROPE: dict[str, tuple[Any, ...]] = {
    "mrope_section": (),
    "partial_rotary_factor": (1,),
    "rope_dim": (0,),
    "use_fope": (False,),
}
"""The same of rotary embeddings (model_executor/layers/rotary_embedding, `get_rope`), in families that have no such part: those that read images have
sections, and some rotate a part of a head."""
LANGUAGES = {family.language for family in FAMILIES.values()}
"""Families of language models that have been saved without their vision tower, and say of their positions what they said with it."""
ACTIVATIONS = {"gemma3_text": ("hidden_activation", "gelu_pytorch_tanh")}
"""Of feed-forward layers, where vLLM 0.32 has another one than SiLU: its classes of other families name no other, and end, or compute SiLU in experts
whatever `hidden_act` says (model_executor/models)."""
ELSE = "set spec.task to sft, dpo or pretrain"


def server_violations(spec: RLJobSpec, whole: dict[str, Any]) -> Iterator[Violation]:
    """What vLLM 0.32 refuses when a server starts: heads and matrices over its GPUs, and positions that the model does not have. `whole`: a
    config.json with its sections as they are."""
    config = language_of(whole)
    rollout, field = spec.rollout, "spec.rollout.tensorParallel"
    if spec.supervised:
        return
    family = family_of(config)
    if family and spec.trainer.device not in family.servers:
        rule = f"nothing shows that vLLM generates with {family.model_type} on a {spec.trainer.device} as it is trained"
        yield Violation("spec.model.path", spec.model.path, rule, f"set spec.trainer.device: gpu, or {ELSE}")
    elif family and family.states:
        yield from _state_violations(spec)
    yield from _own_key_violations(spec, config, whole)
    yield from _activation_violations(spec, config)
    if family and family.vision and spec.trainer.device in family.servers:
        yield from tower_violations(spec, whole)
    if spec.trainer.device == "cpu" and has_latent_attention(config):
        yield from _latent_violations(spec, config)
    heads, groups = heads_of(config)
    widths = {
        key: width for key, width, is_expert in feed_forward(config) if not (is_expert and rollout.expert_parallel)
    }
    divided = {"num_attention_heads": heads or 0} | widths | tower_widths(spec, whole)
    yield from undivided(field, rollout.tensor_parallel, divided, groups)
    layers = config.get("num_hidden_layers")
    if layers and rollout.pipeline_parallel > layers:
        rule = f"some stages would have none of the model's num_hidden_layers = {layers}"
        yield Violation("spec.rollout.pipelineParallel", str(rollout.pipeline_parallel), rule, "set at most that")
    if rollout.expert_parallel and not experts_of(config):
        yield Violation("spec.rollout.expertParallel", "true", "the model has no experts", "remove it")
    elif rollout.expert_parallel and rollout.gpus_sharing_experts > experts_of(config):
        rule = f"tensorParallel x dataParallel = {rollout.gpus_sharing_experts} GPUs would share {experts_of(config)} experts of the model"
        yield Violation("spec.rollout.expertParallel", "true", rule, "lower one of them")
    if rollout.data_parallel > 1 and not experts_of(config):
        rule = "the model has no experts, so copies of it would share nothing"
        yield Violation("spec.rollout.dataParallel", str(rollout.data_parallel), rule, "raise spec.rollout.replicas")
    yield from _context_violations(spec, config)


def _state_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """vLLM computes gated delta nets by Triton, FlashInfer or CuTe, as the GPU and what is installed allow."""
    key, wanted = "gdn-prefill-backend", "triton"
    value = spec.rollout.vllm_args.get(key)
    if value != wanted:
        rule = "the log-probabilities of gated delta nets were compared with vLLM's kernels for Triton only"
        yield Violation(f"spec.rollout.vllmArgs.{key}", as_written(value) if value else "unset", rule, f"set {wanted}")


def _own_key_violations(spec: RLJobSpec, config: dict[str, Any], whole: dict[str, Any]) -> Iterator[Violation]:
    """Keys with which servers would compute another model than trainer and transformers, which do not read them. vLLM reads them also next to the
    section of the language model."""
    of_rope, usual = _without(OWN_OF_ROPE, config), _without(OWN, config)
    usual["head_dtype"] = (*OWN["head_dtype"], spec.model.dtype)
    found = [*dict([*_other_values("", whole, usual), *_other_values("", config, usual)]).items()]
    for key in ROPES:
        rope = config.get(key) or {}
        sections = {"": rope, **{f".{name}": part for name, part in rope.items() if isinstance(part, dict)}}
        found += [one for name, part in sections.items() for one in _other_values(f"{key}{name}.", part, of_rope)]
    for key, value in found:
        rule = (
            f"its config.json has {key} = {as_written(value)}, which vLLM follows, and trainer and transformers do not"
        )
        yield Violation("spec.model.path", spec.model.path, rule, f"remove it there, or {ELSE}")


def _activation_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """`values` of a family name what it is trained with."""
    family = family_of(config)
    key, served = ACTIVATIONS.get(config.get("model_type") or "", ("hidden_act", "silu"))
    value = config.get(key)
    if family and key not in family.values and value not in (None, served):
        rule = f"its config.json has {key} = {as_written(value)}, and vLLM computes {served} in models of this type"
        yield Violation("spec.model.path", spec.model.path, rule, f"use another model, or {ELSE}")


def _without(keys: Mapping[str, tuple[Any, ...]], config: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Those of keys whose part the family of a config.json does not have."""
    family = family_of(config)
    having = {
        "mrope_section": family and (family.vision or family.model_type in LANGUAGES),
        "partial_rotary_factor": family and family.model_type in KEYS["partial_rotary_factor"].families,
        "sliding_window": family and (family.windows or family.model_type in WINDOWS_ONLY_IF_USED),
    }
    return {key: values for key, values in keys.items() if not having.get(key)}


def _other_values(
    prefix: str, section: Mapping[str, Any], usual: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[str, Any]]:
    given = {key: section[key] for key in usual if section.get(key) is not None}
    yield from ((f"{prefix}{key}", value) for key, value in given.items() if value not in usual[key])


def _latent_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """vLLM 0.32's kernels of latent attention on CPUs have one width, without which a server ends at its first token."""
    for key, width in CPU_LATENTS.items():
        if config.get(key, width) != width:
            rule = (
                f"vLLM's CPU build computes latent attention with {key} = {width} only, and the model has {config[key]}"
            )
            yield Violation("spec.model.path", spec.model.path, rule, f"set spec.trainer.device: gpu, or {ELSE}")


def _context_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """vLLM 0.32's `_get_and_verify_max_len` (vllm/config/model.py), and the table of angles that its servers read without looking at its end
    (vllm/model_executor/layers/rotary_embedding). A variable of vLLM's allows more positions than the table has; nothing here does."""
    overrides = spec.rollout.vllm_args.get("hf-overrides")
    positions = _positions(config | overrides if isinstance(overrides, dict) else config)
    longest = longest_context(spec)
    if not positions or longest <= positions:
        return
    trained = bool(spec.rollout.agent) or not spec.evaluation.only
    yield Violation(
        spec.longest_response_field if trained else "spec.evaluation.sampling.maxTokens",
        str(spec.longest_response if trained else spec.evaluation.sampling.max_tokens),
        f"the longest prompt and response, also in evaluation, have {longest} tokens, and the model has {positions:g} positions",
        "lower it, spec.data.maxPromptTokens or maxTokens in spec.evaluation, or set max_position_embeddings in "
        "spec.rollout.vllmArgs.hf-overrides",
    )


def _positions(config: dict[str, Any]) -> float:
    """Number of positions for which vLLM has angles; 0: not known. With yarn max_position_embeddings is already scaled, and the table ends where the
    original positions times the factor do, which in a config.json put together by hand can be sooner."""
    rope_type, rope = rope_of(config)
    trained, factor = config.get("max_position_embeddings") or 0, rope.get("factor") or 1
    if rope_type == "linear":
        return trained * factor
    original = rope.get("original_max_position_embeddings")
    if rope_type == "yarn" and original:
        return min(trained or math.inf, original * factor)
    return trained
