"""Keys of Megatron and vLLM that are passed through verbatim: they have to exist, may not be set by anything else, and have to fit the spec."""

import json
from collections.abc import Iterator
from importlib.resources import files

from rljob_api import names
from rljob_api.nearest import nearest
from rljob_api.rules.engine import Check, Violation
from rljob_api.rules.ranks import Ranks, of_the_trainer
from rljob_api.spec import RLJobSpec

_KNOWN = json.loads((files("rljob_api") / "schema/known_keys.json").read_text())
TRANSFORMER_CONFIG, VLLM_ARGUMENTS = (frozenset(_KNOWN[field]["keys"]) for field in ("transformerConfig", "vllmArgs"))
"""All keys of the pinned versions, as their own packages list them."""

_MODEL = "the model directory's config.json"
_SAME = "the trainer: reinforcement learning compares log-probabilities, so a pass must not depend on chance"
_SCHEDULE = "the trainer, from parallelism.pipeline"
_LOSS = "the trainer, which computes log-probabilities from the logits itself"
_KEPT = "nothing: the rollouts' experts drop no tokens, so that the trainer's may not"
_NOT_TRAINED = "nothing: the trainer has no such part"

_SAME_SHARE = "gpu-memory-utilization, which is the same"
_ONE_POD = "tensorParallel: a server is in one pod and has no other GPUs"

OWNED_TRANSFORMER_CONFIG = {
    "tensor_model_parallel_size": "spec.trainer.parallelism.tensor",
    "pipeline_model_parallel_size": "spec.trainer.parallelism.pipeline",
    "virtual_pipeline_model_parallel_size": "spec.trainer.parallelism.virtualPipeline",
    "context_parallel_size": "spec.trainer.parallelism.context",
    "hierarchical_context_parallel_sizes": "spec.trainer.parallelism.context",
    "hybrid_context_parallel": "spec.trainer.parallelism.context",
    "max_seqlen_per_dp_cp_rank": "spec.trainer.parallelism.context",
    "expert_model_parallel_size": "spec.trainer.parallelism.expert",
    "expert_tensor_parallel_size": "spec.trainer.parallelism.expertTensor",
    "sequence_parallel": "spec.trainer.parallelism.sequence",
    "recompute_granularity": "spec.trainer.recompute.granularity",
    "recompute_method": "spec.trainer.recompute.method",
    "recompute_num_layers": "spec.trainer.recompute.layers",
    "recompute_modules": "spec.trainer.recompute.modules",
    "moe_layer_recompute": "spec.trainer.recompute.modules",
    "variable_seq_lengths": "the trainer, which packs sequences",
    "calculate_per_token_loss": "spec.algorithm.aggregation",
    "use_cpu_initialization": "spec.trainer.device",
    "transformer_impl": "the trainer, from what is installed",
    "moe_grouped_gemm": "the trainer: checkpoints hold grouped experts",
    "moe_enable_routing_replay": "spec.algorithm.rolloutCorrection.routerReplay",
    "overlap_moe_expert_parallel_comm": _NOT_TRAINED,
    "delay_wgrad_compute": _NOT_TRAINED,
    "qk_clip": _NOT_TRAINED,
    **dict.fromkeys(
        (
            "moe_expert_capacity_factor",
            "moe_expert_rank_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "moe_token_drop_policy",
            "moe_token_dropping",
        ),
        _KEPT,
    ),
    "cross_entropy_loss_fusion": _LOSS,
    "cross_entropy_fusion_impl": _LOSS,
    **dict.fromkeys(("params_dtype", "pipeline_dtype", "autocast_dtype", "bf16", "fp16"), "spec.model.dtype"),
    **dict.fromkeys(("overlap_p2p_comm", "batch_p2p_comm", "microbatch_group_size_per_vp_stage"), _SCHEDULE),
    **dict.fromkeys(("hidden_dropout", "attention_dropout", "moe_input_jitter_eps"), _SAME),
    **dict.fromkeys(("moe_router_force_load_balancing", "moe_router_force_biased"), _SAME),
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
        "rotary_interleaved",
        "softmax_scale",
        "window_size",
        "multi_latent_attention",
        "mtp_num_layers",
        "num_moe_experts",
        "moe_layer_freq",
        "moe_router_topk",
        "moe_router_pre_softmax",
        "moe_router_score_function",
        "moe_router_enable_expert_bias",
        "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate",
        "moe_latent_size",
        "moe_apply_probs_on_input",
        "moe_router_num_groups",
        "moe_router_group_topk",
        "moe_router_topk_limited_devices",
        "moe_router_topk_scaling_factor",
        "activation_func_clamp_value",
        "apply_residual_connection_post_layernorm",
        "attention_output_gate",
        "experimental_attention_variant",
        "glu_linear_offset",
        "heterogeneous_block_specs",
        "is_hybrid_model",
        "layernorm_zero_centered_gamma",
        "linear_attention_freq",
        "mrope_section",
        "no_rope_freq",
        "qk_l2_norm",
        "softmax_type",
        "use_mup",
        "window_attn_skip_freq",
    ),
    _MODEL,
)

OWNED_VLLM_ARGUMENTS = {
    **dict.fromkeys((key for key in VLLM_ARGUMENTS if key.startswith("data-parallel")), "spec.rollout.replicas"),
    "model": "spec.model.path",
    "tokenizer": "spec.model.path",
    "dtype": "spec.model.dtype",
    "trust-remote-code": "spec.model.trustRemoteCode",
    "tensor-parallel-size": "spec.rollout.tensorParallel",
    **dict.fromkeys(("pipeline-parallel-size", "prefill-context-parallel-size", "nnodes", "node-rank"), _ONE_POD),
    "max-model-len": "spec.data.maxPromptTokens + spec.rollout.sampling.maxTokens",
    "generation-config": "rljob: every sampling parameter is explicit",
    "override-generation-config": "rljob: every sampling parameter is explicit",
    "logprobs-mode": "rljob: the trainer needs processed log-probabilities",
    "distributed-executor-backend": "rljob, from spec.rollout.tensorParallel",
    **dict.fromkeys(
        ("logits-processors", "watermark-config", "enable-trace-replay"),
        "rljob: samples are drawn from the policy's own distribution",
    ),
    **dict.fromkeys(
        ("max-num-queued-reqs", "max-num-queued-tokens"), "rljob: a server refuses none of the responses of a step"
    ),
    "device-memory-utilization": _SAME_SHARE,
    **dict.fromkeys(
        ("enable-lora", "max-loras", "max-lora-rank", "lora-dtype", "lora-modules", "lora-target-modules"),
        "spec.model.lora.sync",
    ),
    **dict.fromkeys(
        ("enable-return-routed-experts", "aux-output-config"), "spec.algorithm.rolloutCorrection.routerReplay"
    ),
    "scheduler-cls": "rljob, whose scheduler hands responses over in pieces",
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
        "ssl-keyfile",
        "ssl-certfile",
        "api-server-count",
        "headless",
        "grpc",
        "grpc-port",
    ),
    "rljob, which authenticates and updates the server",
)

_SERVED = "rljob, which starts, authenticates and watches the server"
OWNED_POOL_ARGUMENTS = {
    **dict.fromkeys((key for key in VLLM_ARGUMENTS if key.startswith("data-parallel")), "the pool's replicas"),
    **dict.fromkeys(("pipeline-parallel-size", "prefill-context-parallel-size", "nnodes", "node-rank"), _ONE_POD),
    "model": "the pool's model",
    "tensor-parallel-size": "the pool's tensorParallel",
    "distributed-executor-backend": "rljob, from the pool's tensorParallel",
    "weight-transfer-config": "rljob: the model of a pool is frozen",
    "device-memory-utilization": _SAME_SHARE,
    **dict.fromkeys(
        (
            "host",
            "port",
            "api-key",
            "served-model-name",
            "middleware",
            "uds",
            "root-path",
            "ssl-keyfile",
            "ssl-certfile",
        ),
        _SERVED,
    ),
    **dict.fromkeys(("api-server-count", "headless", "grpc", "grpc-port"), _SERVED),
}

TRANSFORMER = "trainer.transformerConfig"
SPLITS = (
    ("pipeline_model_parallel_layout",),
    ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
"""Keys of transformerConfig by which stages get other than equal shares of the layers; each line is one way."""
COUNTED = ("max-num-seqs", "gpu-memory-utilization", "kv-cache-memory-bytes")
"""Arguments of vLLM that estimates of memory are computed with."""
NEEDS_GPU = {
    "apply_rope_fusion": "a kernel of Transformer Engine",
    "moe_permute_fusion": "a kernel of Transformer Engine",
    "moe_router_fusion": "a kernel of Transformer Engine",
    "gradient_accumulation_fusion": "a kernel of Apex or Transformer Engine",
    "masked_softmax_fusion": "a kernel of Apex",
    "persist_layer_norm": "a kernel of Apex",
    "tp_comm_overlap": "Transformer Engine",
    "fp8": "Transformer Engine",
    "fp4": "Transformer Engine",
    "cpu_offloading": "Transformer Engine, and there is no device memory to save",
    "fine_grained_activation_offloading": "CUDA streams, and there is no device memory to save",
    "cp_comm_type": "Transformer Engine's attention; torch layers gather keys and values",
}
"""Keys of transformerConfig that fail with `device: cpu`, and what they need."""
UNPROVEN_WITH_ADAPTERS = (
    "use_transformer_engine_op_fuser",
    "fp8",
    "fp4",
    "tp_comm_overlap",
    "cuda_graph_impl",
    "enable_cuda_graph",
    "external_cuda_graph",
    "cpu_offloading",
    "fine_grained_activation_offloading",
)
"""Keys of transformerConfig that change the layers that have adapters."""


def transformer_key_violations(ranks: Ranks) -> Iterator[Violation]:
    """Unknown keys of transformerConfig, and keys that something else sets."""
    given, owners = ranks.spec.trainer.transformer_config, _owners(ranks)
    return _check(ranks.at(TRANSFORMER), given, TRANSFORMER_CONFIG, owners)


def _owners(ranks: Ranks) -> dict[str, str]:
    """What sets the keys that may not be passed through. Fields are those of these ranks."""
    return {
        k: ranks.at(o.removeprefix("spec.")) if o.startswith("spec.") else o
        for k, o in OWNED_TRANSFORMER_CONFIG.items()
    }


def vllm_key_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Unknown keys of vllmArgs, and keys that something else sets."""
    yield from _check("spec.rollout.vllmArgs", spec.rollout.vllm_args, VLLM_ARGUMENTS, OWNED_VLLM_ARGUMENTS)
    for i, pool in enumerate(spec.pools):
        yield from _check(f"spec.pools[{i}].vllmArgs", pool.vllm_args, VLLM_ARGUMENTS, OWNED_POOL_ARGUMENTS)


def number_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for key, value in spec.rollout.vllm_args.items():
        if key in COUNTED and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            rule = "must be a number above 0, since the plan of memory depends on it"
            yield Violation(
                f"spec.rollout.vllmArgs.{key}", str(value), rule, "write it as a plain number, or remove it"
            )


def device_violations(ranks: Ranks) -> Iterator[Violation]:
    given = ranks.spec.trainer.transformer_config
    if ranks.spec.trainer.device == "cpu":
        for key in (key for key in NEEDS_GPU if given.get(key)):
            yield _refused(ranks, key, f"device cpu has none of what it needs: {NEEDS_GPU[key]}")


def expert_violations(ranks: Ranks) -> Iterator[Violation]:
    """Keys about experts: core/transformer/transformer_config.py:1745 and :2978, and what a router's loss needs."""
    given = ranks.spec.trainer.transformer_config
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    if dispatcher not in ("alltoall", "flex"):
        yield _refused(ranks, "moe_token_dispatcher_type", "packed sequences differ in length", "set alltoall or flex")
    if dispatcher == "flex" and ranks.spec.trainer.device == "cpu":
        yield _refused(ranks, "moe_token_dispatcher_type", "its kernels need GPUs", "set alltoall")
    balancing, coefficient = given.get("moe_router_load_balancing_type", "none"), given.get("moe_aux_loss_coeff")
    if balancing not in ("none", "aux_loss", "global_aux_loss"):
        rule = "it would route otherwise than the rollouts, or takes a whole micro-batch for one sequence"
        yield _refused(ranks, "moe_router_load_balancing_type", rule, "set none, aux_loss or global_aux_loss")
    elif balancing != "none" and not coefficient:
        yield _refused(ranks, "moe_router_load_balancing_type", "has no weight", "set moe_aux_loss_coeff")
    elif balancing == "none" and coefficient:
        yield _refused(ranks, "moe_aux_loss_coeff", "there is no such loss", "set moe_router_load_balancing_type")
    if dispatcher != "flex" and given.get("moe_enable_deepep"):
        yield _refused(ranks, "moe_enable_deepep", "DeepEP is a back end of the flex dispatcher", "set it to flex")


def offload_violations(ranks: Ranks) -> Iterator[Violation]:
    """Activations in host memory: core/transformer/transformer_config.py:1884-1897 and what follows there."""
    given, recompute = ranks.spec.trainer.transformer_config, ranks.spec.trainer.recompute
    if given.get("cpu_offloading") and ranks.spec.trainer.parallelism.pipeline > 1:
        yield _refused(
            ranks,
            "cpu_offloading",
            f"works in one stage only, and pipeline = {ranks.spec.trainer.parallelism.pipeline}",
        )
    if given.get("cpu_offloading") and recompute.granularity != "none":
        yield _refused(
            ranks, "cpu_offloading", f"does not work with {ranks.at('trainer.recompute')} ({recompute.granularity})"
        )
    if given.get("cpu_offloading") and given.get("fine_grained_activation_offloading"):
        yield _refused(ranks, "cpu_offloading", "fine_grained_activation_offloading does the same in another way")
    if given.get("fine_grained_activation_offloading") and not given.get("offload_modules"):
        yield _refused(ranks, "fine_grained_activation_offloading", "needs offload_modules", "name them")
    if given.get("distribute_saved_activations") and recompute.granularity != "full":
        yield _refused(ranks, "distribute_saved_activations", "cuts what full recomputation saves, which is not on")
    sequence = ranks.spec.trainer.parallelism.sequence and ranks.spec.trainer.parallelism.tensor > 1
    if given.get("distribute_saved_activations") and sequence:
        yield _refused(ranks, "distribute_saved_activations", "sequence parallelism has cut them already")


def adapter_violations(spec: RLJobSpec) -> Iterator[Violation]:
    policy = Ranks.of(spec, names.ROLE_TRAINER)
    for key in UNPROVEN_WITH_ADAPTERS if spec.model.lora else ():
        if spec.trainer.transformer_config.get(key):
            yield _refused(policy, key, "is not proven with spec.model.lora")


def split_violations(ranks: Ranks) -> Iterator[Violation]:
    """Three ways to cut layers into unequal stages (core/transformer/transformer_config.py:1933-1960), one at a time."""
    ways = [{key for key in way if ranks.spec.trainer.transformer_config.get(key)} for way in SPLITS]
    used = [sorted(way) for way in ways if way]
    if len(used) > 1:
        yield _refused(ranks, used[0][0], f"contradicts {used[1][0]}: both say how many layers a stage gets")
    if used and ranks.spec.trainer.parallelism.pipeline == 1:
        yield _refused(ranks, used[0][0], f"there is one stage: {ranks.at('trainer.parallelism.pipeline')} = 1")


def _refused(ranks: Ranks, key: str, rule: str, fix: str = "remove it") -> Violation:
    return Violation(f"{ranks.at(TRANSFORMER)}.{key}", str(ranks.spec.trainer.transformer_config[key]), rule, fix)


def _check(field: str, given: dict, known: frozenset[str], owned: dict[str, str]) -> Iterator[Violation]:
    for key, value in given.items():
        if key in owned:
            yield Violation(f"{field}.{key}", str(value), f"this key is set by {owned[key]}", "remove it here")
        elif key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else "see the documentation of the pinned version for its keys"
            yield Violation(f"{field}.{key}", str(value), "there is no such key in the pinned version", hint)


RANKS_CHECKS = (
    transformer_key_violations,
    device_violations,
    expert_violations,
    offload_violations,
    split_violations,
)
RULES: tuple[Check, ...] = (*of_the_trainer(*RANKS_CHECKS), vllm_key_violations, number_violations, adapter_violations)
