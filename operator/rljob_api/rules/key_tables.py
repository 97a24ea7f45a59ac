"""Keys that Megatron and vLLM know, and those that the spec or the trainer sets, with what sets them: nothing may pass these through. Names of vLLM's
parsers."""

import json
from importlib.resources import files

_KNOWN = json.loads((files("rljob_api") / "schema/known_keys.json").read_text())
TRANSFORMER_CONFIG, VLLM_ARGUMENTS = (frozenset(_KNOWN[field]["keys"]) for field in ("transformerConfig", "vllmArgs"))
"""All keys of the pinned versions, as their own packages list them."""

TOOL_PARSERS, REASONING_PARSERS = (frozenset(_KNOWN[field]["keys"]) for field in ("toolParser", "reasoningParser"))

_DDP, _OPTIMIZER = (frozenset(_KNOWN[of]["keys"]) for of in ("ddp", "optimizer"))
"""Options that users of Megatron look for in transformerConfig."""

_MODEL = "the model directory's config.json"
_SAME = "the trainer: reinforcement learning compares log-probabilities, so a pass must not depend on chance"
_SCHEDULE = "the trainer, from parallelism.pipeline"
_LOSS = "the trainer, which computes log-probabilities from the logits itself"
_KEPT = "nothing: the rollouts' experts drop no tokens, so that the trainer's may not"
_NOT_TRAINED = "nothing: the trainer has no such part"

_SAME_SHARE = "gpu-memory-utilization, which is the same"
_NOT_SERVED = "nothing: a server is cut by its tensorParallel, pipelineParallel and dataParallel"


def _owned_layout(section: str) -> dict[str, str]:
    """Arguments of vLLM that a section's own fields set: the pods of a server, and how its model is cut."""
    data_parallel = (key for key in VLLM_ARGUMENTS if key.startswith(("data-parallel", "dp-supervisor")))
    return {
        **dict.fromkeys(data_parallel, f"{section}dataParallel"),
        **dict.fromkeys(("nnodes", "node-rank", "master-addr", "master-port"), f"{section}nodes"),
        **dict.fromkeys(("prefill-context-parallel-size", "enable-elastic-ep", "elastic-ep-max-dp-size"), _NOT_SERVED),
        "tensor-parallel-size": f"{section}tensorParallel",
        "pipeline-parallel-size": f"{section}pipelineParallel",
        "enable-expert-parallel": f"{section}expertParallel",
        "distributed-executor-backend": f"rljob, from {section}nodes and the GPUs of a server",
    }


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
    **dict.fromkeys((key for key in TRANSFORMER_CONFIG if key.startswith("mtp_")), "spec.model.multiTokenPrediction"),
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

_OF_DDP = {
    "overlap_grad_reduce": "spec.trainer.overlap.gradReduce",
    "overlap_param_gather": "spec.trainer.overlap.paramGather",
    "use_distributed_optimizer": "the trainer: it always shards the optimizer",
    "grad_reduce_in_fp32": "the trainer: it always reduces gradients in float32",
    "average_in_collective": "spec.algorithm.aggregation",
    "use_megatron_fsdp": "the trainer, which has no FSDP: spec.trainer.parallelism divides the model",
}
_OF_OPTIMIZER = {
    "lr": "spec.train.optimizer.learningRate",
    "min_lr": "spec.train.optimizer.minLearningRate",
    "weight_decay": "spec.train.optimizer.weightDecay",
    "adam_beta1": "spec.train.optimizer.beta1",
    "adam_beta2": "spec.train.optimizer.beta2",
    "adam_eps": "spec.train.optimizer.epsilon",
    "clip_grad": "spec.train.optimizer.clipGrad",
    **dict.fromkeys(
        ("use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype"), "spec.train.optimizer.momentsDtype"
    ),
}
OWNED_TRANSFORMER_CONFIG |= {
    **dict.fromkeys(
        _OPTIMIZER - TRANSFORMER_CONFIG,
        "the trainer: of the options of Megatron's optimizer, spec.train.optimizer has all there are",
    ),
    **dict.fromkeys(
        _DDP - TRANSFORMER_CONFIG,
        "the trainer: of the options of Megatron's DDP, spec.trainer.overlap has all there are",
    ),
    **_OF_OPTIMIZER,
    **_OF_DDP,
}

OWNED_VLLM_ARGUMENTS = {
    **_owned_layout("spec.rollout."),
    "mm-device-do-normalize": "the trainer, which hands over images that are normalised",
    "model": "spec.model.path",
    "tokenizer": "spec.model.path",
    "dtype": "spec.model.dtype",
    "trust-remote-code": "spec.model.trustRemoteCode",
    "max-model-len": "spec.data.maxPromptTokens + spec.rollout.sampling.maxTokens",
    "generation-config": "rljob: every sampling parameter is explicit",
    "override-generation-config": "rljob: every sampling parameter is explicit",
    "logprobs-mode": "rljob: the trainer needs processed log-probabilities",
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
    **dict.fromkeys(
        ("speculative-config", "spec-method", "spec-model", "spec-tokens", "per-request-spec-decode-metrics"),
        "spec.rollout.speculation",
    ),
    "scheduler-cls": "rljob, whose scheduler hands responses over in pieces",
    "tool-call-parser": "spec.rollout.agent.toolParser",
    "reasoning-parser": "spec.rollout.agent.reasoningParser",
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
    **_owned_layout("the pool's "),
    "model": "the pool's model",
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
