"""Keys of Megatron and vLLM that pass through verbatim, and those that are refused there because something of ours says them."""

import difflib
from collections.abc import Iterator

from rljob_api.known_keys import TRANSFORMER_CONFIG, VLLM_ARGUMENTS
from rljob_api.spec import RLJobSpec
from rljob_api.violation import Violation

_MODEL = "the model directory's config.json"

OWNED_TRANSFORMER_CONFIG = {
    "tensor_model_parallel_size": "spec.trainer.parallelism.tensor",
    "pipeline_model_parallel_size": "spec.trainer.parallelism.pipeline",
    "sequence_parallel": "spec.trainer.parallelism.sequence",
    "params_dtype": "spec.model.dtype",
    "pipeline_dtype": "spec.model.dtype",
    "autocast_dtype": "spec.model.dtype",
    "bf16": "spec.model.dtype",
    "fp16": "spec.model.dtype",
    "variable_seq_lengths": "the trainer, which packs sequences",
    "calculate_per_token_loss": "spec.algorithm.aggregation",
    "use_cpu_initialization": "spec.trainer.device",
    "transformer_impl": "the trainer, from what is installed",
    "hidden_dropout": "the trainer: reinforcement learning compares log-probabilities, so dropout is 0",
    "attention_dropout": "the trainer: reinforcement learning compares log-probabilities, so dropout is 0",
} | dict.fromkeys(
    (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "layernorm_epsilon",
        "normalization",
        "qk_layernorm",
        "add_qkv_bias",
        "add_bias_linear",
        "gated_linear_unit",
        "num_moe_experts",
        "moe_router_topk",
        "moe_ffn_hidden_size",
    ),
    _MODEL,
)

OWNED_VLLM_ARGUMENTS = {
    "model": "spec.model.path",
    "tokenizer": "spec.model.path",
    "dtype": "spec.model.dtype",
    "trust-remote-code": "spec.model.trustRemoteCode",
    "tensor-parallel-size": "spec.rollout.tensorParallel",
    "max-model-len": "spec.data.maxPromptTokens + spec.rollout.sampling.maxTokens",
    "generation-config": "rljob: every sampling parameter is explicit",
    "override-generation-config": "rljob: every sampling parameter is explicit",
    "logprobs-mode": "rljob: the trainer needs processed log-probabilities",
    "distributed-executor-backend": "rljob, from spec.rollout.tensorParallel",
} | dict.fromkeys(
    (
        "host",
        "port",
        "api-key",
        "served-model-name",
        "middleware",
        "worker-extension-cls",
        "weight-transfer-config",
        "uds",
        "root-path",
    ),
    "rljob, which authenticates and updates the server",
)


def passthrough_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Unknown keys, and keys with an owner."""
    yield from _check(
        "spec.trainer.transformerConfig", spec.trainer.transformer_config, TRANSFORMER_CONFIG, OWNED_TRANSFORMER_CONFIG
    )
    yield from _check("spec.rollout.vllmArgs", spec.rollout.vllm_args, VLLM_ARGUMENTS, OWNED_VLLM_ARGUMENTS)


def _check(field: str, given: dict, known: frozenset[str], owned: dict[str, str]) -> Iterator[Violation]:
    for key, value in given.items():
        if key in owned:
            yield Violation(f"{field}.{key}", str(value), f"this key is set by {owned[key]}", "remove it here")
        elif key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see the documentation of the pinned version for its keys"
            yield Violation(f"{field}.{key}", str(value), "there is no such key in the pinned version", hint)
