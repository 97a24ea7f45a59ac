"""What becomes of the keys of verl's reinforcement learning trainer. Defaults are verl's own, of its Megatron configuration."""

from typing import Any

from kubectl_rljob.importer.adapters import verl_rows
from kubectl_rljob.importer.megatron import layout_rows, recompute_rows, same_layout_rows, transformer_row
from kubectl_rljob.importer.table import Row, becomes, implied, lacks, must, read, verbatim
from kubectl_rljob.importer.values import IMAGES, REPLAY, at_least, choice

AR = "actor_rollout_ref."
ACTOR, REF, ROLLOUT, MODEL = (f"{AR}{part}." for part in ("actor", "ref", "rollout", "model"))
OPTIMIZER: dict[str, Any] = {"weight_decay": 0.01, "clip_grad": 1.0, "min_lr": 0.0, "lr_decay_style": "constant"}
DECAYS = choice(constant="constant", linear="linear", cosine="cosine")
SPEED = "changes no result; the trainer and vLLM have settings of their own"
ONE_BUDGET = "one token budget holds for all passes: train.tokensPerMicroBatch"

QUIET = (
    "profiler.*",
    "use_torch_compile",
    "entropy_checkpointing",
    "entropy_from_logits_with_chunking",
    "entropy_from_logits_chunk_size",
)
"""Of actor, reference and critic: what changes no result."""
REF_QUIET = (
    *(
        "rollout_n",
        "fsdp_config.*",
        "veomni.*",
        "router_replay.*",
        "ulysses_sequence_parallel_size",
        "pad_to_length",
        "load_weight",
    ),
    "engine.*",
)
UNUSED = (
    "_target_",
    "lr_wsd_decay_style",
    "lr_wsd_decay_steps",
    "main_grads_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "use_layer_wise_distributed_optimizer",
    *(f"muon_{key}" for key in ("momentum", "nesterov", "split_qkv", "scale_mode", "coefficient_type", "num_ns_steps")),
    *(
        f"muon_{key}"
        for key in ("tp_mode", "fp32_matmul_prec", "extra_scale_factor", "scalar_optimizer", "match_adamw_update_rms")
    ),
)
ROLLOUT_QUIET = (
    *(
        "mode",
        "dtype",
        "seed",
        "load_format",
        "logprobs_mode",
        "disable_log_stats",
        "skip_tokenizer_init",
        "layered_summon",
    ),
    *("multi_stage_wake_up", "full_determinism", "cudagraph_capture_sizes", "limit_images", "quantization_config_file"),
    *("disaggregation.*", "mtp.*", "qat.*", "trace.*", "profiler.*", "prometheus.*"),
    *("skip_rollout", "skip_dump_dir", "layer_name_map.*", "moe_load_balance_metrics_interval", "model_engine"),
)
CRITIC_BUDGETS = (
    *("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size", "use_dynamic_bsz"),
    *("forward_max_token_len_per_gpu", "forward_micro_batch_size_per_gpu", "forward_micro_batch_size"),
)
CRITIC_QUIET = (
    *(
        "strategy",
        "enable",
        "rollout_n",
        "shuffle",
        "data_loader_seed",
        "loss_agg_mode",
        "loss_scale_factor",
        "grad_clip",
    ),
    *(
        "model.*",
        "checkpoint.*",
        "nccl_timeout",
        "load_weight",
        "fsdp.*",
        "fsdp_config.*",
        "veomni.*",
        "model_config.*",
    ),
    "ulysses_sequence_parallel_size",
)
REWARD_MODEL_QUIET = (
    *("enable_resource_pool", "n_gpus_per_node", "nnodes", "strategy", "num_workers", "use_reward_loop", "load_weight"),
    *("model.*", "rollout.*", "megatron.*", "profiler.*", "reward_loop_source", "reward_loop_module_path"),
    *("reward_loop_class_name", "launch_reward_fn_async", "micro_batch_size", "micro_batch_size_per_gpu", "max_length"),
    *("use_dynamic_bsz", "forward_max_token_len_per_gpu", "nccl_timeout", "sandbox_fusion.*"),
)

AGENT = "tools and turns are an agent of your own: rollout.agent (docs/agents.md)"
DATA = (
    read("data.train_files", "data.train", "~/data/rlhf/gsm8k/train.parquet"),
    read("data.val_files", "data.validation", "~/data/rlhf/gsm8k/test.parquet"),
    becomes("data.prompt_key", "data.promptKey", "prompt"),
    becomes("data.reward_fn_key", "data.dataSourceKey", "data_source"),
    becomes("data.max_prompt_length", "data.maxPromptTokens", 512),
    read("data.max_response_length", "rollout.sampling.maxTokens, evaluation.sampling.maxTokens", 512),
    read("data.train_batch_size", "train.promptsPerStep", 1024, text="0: prompts are streamed, see async_training"),
    becomes("data.shuffle", "data.shuffle", True),
    becomes("data.seed", "data.seed"),
    read("data.gen_batch_size", "", text="a round generates promptsPerStep prompts"),
    read("data.truncation", "", "error", text="longer prompts are left out and counted, never cut"),
    implied("data.filter_overlong_prompts", "longer prompts are left out and counted"),
    implied("data.filter_overlong_prompts_workers"),
    lacks("data.train_max_samples", "all rows are used", -1),
    lacks("data.val_max_samples", "all rows are used", -1),
    lacks("data.custom_cls.path", "prompts are read from files only"),
    implied("data.custom_cls.name"),
    lacks("data.tool_config_path", AGENT, ""),
    lacks("data.function_tool_path", AGENT, ""),
    verbatim("data.apply_chat_template_kwargs", "data.chatTemplate.arguments", frozenset(), "as they are"),
    lacks("data.mm_processor_kwargs.*", IMAGES),
    lacks("data.tokenizer", "the tokenizer is the model directory's"),
    implied("data.trust_remote_code", "model.trustRemoteCode says it"),
    lacks("data.sampler.class_path", "prompts are drawn in a shuffled order"),
    lacks("data.datagen.path", "prompts are read from files only"),
    becomes("data.image_key", "data.imageKey"),
    *(lacks(f"data.{key}", "models read texts and images only") for key in ("video_key", "audio_key")),
    *(implied(f"data.{key}", SPEED) for key in ("use_shm", "dataloader_num_workers", "val_batch_size")),
    *(implied(f"data.return_{key}") for key in ("raw_chat", "raw_input_ids", "full_prompt", "multi_modal_inputs")),
    *(implied(f"data.{key}") for key in ("validation_shuffle", "image_patch_size")),
    *(implied(f"data.{key}") for key in ("sampler.class_name", "datagen.name")),
)

POLICY = (
    read(f"{MODEL}path", "model.path", "~/models/deepseek-llm-7b-chat", also=("model.actor.pretrained",)),
    becomes(
        f"{MODEL}torch_dtype", "model.dtype", convert=choice(bfloat16="bfloat16", float32="float32", auto="bfloat16")
    ),
    becomes(f"{MODEL}trust_remote_code", "model.trustRemoteCode", False),
    must(f"{MODEL}use_remove_padding", True, "sequences are always packed", also=(f"{MODEL}remove_padding",)),
    *verl_rows(MODEL),
    *(lacks(f"{MODEL}mtp.{key}", "multi-token prediction is not trained") for key in ("enable", "enable_train")),
    implied(f"{MODEL}mtp.*"),
    lacks(f"{MODEL}override_config.*", "the model is as its config.json says"),
    lacks(f"{MODEL}external_lib", "no further packages are imported"),
    lacks(f"{MODEL}custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    *(lacks(f"{MODEL}{key}", "is in the model's directory") for key in ("tokenizer_path", "hf_config_path")),
    lacks(f"{MODEL}enable_activation_offload", "trainer.transformerConfig has Megatron's own way"),
    implied(f"{MODEL}enable_gradient_checkpointing", "trainer.recompute says what is computed again"),
    *(
        implied(f"{MODEL}{key}", SPEED)
        for key in ("use_fused_kernels", "fused_kernel_options.*", "use_liger", "use_shm", "tiled_mlp.*")
    ),
)


def megatron_rows(m: str) -> tuple[Row, ...]:
    """What all engines have alike, under the prefix `m`."""
    off = ("dynamic_context_parallel", "use_megatron_fsdp", "pad_to_length", "qat.enable")
    return (
        must(f"{m}use_distributed_optimizer", True, "the optimizer is always distributed"),
        *(lacks(f"{m}{key}", "there is no such mode") for key in off),
        *(lacks(f"{m}{key}.*", "the model is as its config.json says") for key in ("override_mcore_model_config",)),
        lacks(f"{m}dist_checkpointing_prefix", "parameters have megatron-core's own names", ""),
        *(
            implied(f"{m}{key}", "Hugging Face weights are read and written directly")
            for key in ("use_mbridge", "vanilla_mbridge")
        ),
        implied(f"{m}use_remove_padding", "sequences are always packed"),
        *(
            implied(f"{m}{key}")
            for key in (
                "entropy_from_logits_with_chunking",
                "entropy_from_logits_chunk_size",
                "seed",
                "forward_only",
                "max_seqlen_per_dp_cp_rank",
                "pad_bshd_to_minibatch_max",
                "pad_to_length_bucket",
                "distrib_optim_fully_reshardable_mem_efficient",
                "load_weight",
                "router_replay.*",
                "qat.*",
            )
        ),
    )


def optimizer_rows(prefix: str, target: str, rate: float) -> tuple[Row, ...]:
    """An optimizer, and what of verl's an RLJob's has not."""
    o = f"{prefix}optim."
    return (
        becomes(f"{o}lr", f"{target}.learningRate", rate),
        becomes(f"{o}weight_decay", f"{target}.weightDecay", OPTIMIZER["weight_decay"], text="verl's default is 0.01"),
        becomes(f"{o}clip_grad", f"{target}.clipGrad", 1.0),
        read(f"{o}betas", f"{target}.beta1, {target}.beta2", [0.9, 0.999], text="verl's default is 0.9, 0.999"),
        becomes(
            f"{o}lr_decay_style", f"{target}.decay", "constant", DECAYS, (f"{o}lr_scheduler_type", f"{o}warmup_style")
        ),
        read(f"{o}min_lr", f"{target}.minLearningRate", 0.0),
        read(f"{o}min_lr_ratio", f"{target}.minLearningRate"),
        read(f"{o}lr_warmup_steps", f"{target}.warmupSteps", -1),
        read(f"{o}lr_warmup_steps_ratio", f"{target}.warmupSteps", 0.0, text="needs --rows while epochs are given"),
        lacks(f"{o}optimizer", "the optimizer is AdamW", "adam", "adamw", "AdamW"),
        lacks(f"{o}lr_warmup_init", "the warm-up begins at 0", 0, 0.0),
        lacks(f"{o}lr_decay_steps", "the rate falls until the last step"),
        lacks(f"{o}weight_decay_incr_style", "weight decay is constant", "constant"),
        lacks(f"{o}use_precision_aware_optimizer", "optimizer states are float32"),
        lacks(
            f"{o}override_optimizer_config.*", "the optimizer has no further settings; see trainer.offload.optimizer"
        ),
        *(
            implied(f"{o}{key}")
            for key in (
                "total_training_steps",
                "use_checkpoint_opt_param_scheduler",
                "optimizer_impl",
                "num_cycles",
                "zero_indexed_step",
            )
        ),
        *(implied(f"{o}{key}", "read by other optimizers and schedules only") for key in UNUSED),
    )


ACTOR_ROWS = (
    read(f"{ACTOR}strategy", "", "megatron", text="of other strategies the layout is not taken over"),
    read(f"{ACTOR}ppo_mini_batch_size", "train.miniBatches", 256, text="data.train_batch_size / it"),
    becomes(f"{ACTOR}ppo_epochs", "train.epochsPerStep", 1),
    read(f"{ACTOR}use_dynamic_bsz", "train.tokensPerMicroBatch", False),
    read(f"{ACTOR}ppo_max_token_len_per_gpu", "train.tokensPerMicroBatch", 16384, text="x context parallel size"),
    read(f"{ACTOR}ppo_micro_batch_size_per_gpu", "train.tokensPerMicroBatch", text="x the longest sample"),
    implied(f"{ACTOR}ppo_micro_batch_size", ONE_BUDGET),
    read(f"{ACTOR}clip_ratio", "algorithm.clip.low, algorithm.clip.high", 0.2, also=("algorithm.ppo.clip_coef",)),
    read(f"{ACTOR}clip_ratio_low", "algorithm.clip.low"),
    read(f"{ACTOR}clip_ratio_high", "algorithm.clip.high"),
    read(f"{ACTOR}clip_ratio_c", "algorithm.clip.dual", 3.0, text="with loss ppo; verl's default is 3"),
    read(f"{ACTOR}policy_loss.loss_mode", "algorithm.loss", "vanilla"),
    implied(f"{ACTOR}policy_loss.*", "read by other losses only"),
    read(f"{ACTOR}loss_agg_mode", "algorithm.aggregation", "token-mean"),
    read(f"{ACTOR}loss_scale_factor", "", text="is the longest response"),
    becomes(f"{ACTOR}entropy_coeff", "algorithm.entropyCoefficient", 0),
    read(f"{ACTOR}use_kl_loss", "algorithm.kl", False),
    read(f"{ACTOR}kl_loss_coef", "algorithm.kl.coefficient", 0.001),
    read(f"{ACTOR}kl_loss_type", "algorithm.kl.estimator", "low_var_kl"),
    lacks(f"{ACTOR}use_prefix_grouper", "samples of a prompt share no computation"),
    *(
        implied(f"{ACTOR}{key}", "read by other losses only")
        for key in ("tau_pos", "tau_neg", "dro_beta", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    ),
    implied(f"{ACTOR}use_fused_kernels", SPEED),
    becomes(
        f"{ACTOR}freeze_vision_tower", "model.freeze", convert=lambda value: ["vision", "projector"] if value else None
    ),
    *(
        implied(f"{ACTOR}{key}")
        for key in (
            "rollout_n",
            "shuffle",
            "data_loader_seed",
            "calculate_entropy",
            "calculate_sum_pi_squared",
            "sum_pi_squared_checkpointing",
            "load_weight",
            "router_replay.*",
            "fsdp_config.*",
            "veomni.*",
            "engine.*",
            "torchtitan.*",
            "automodel.*",
            "ulysses_sequence_parallel_size",
            *QUIET,
            "qat.*",
            "model_engine",
            "use_rollout_log_probs",
            "use_remove_padding",
            "nccl_timeout",
            "pad_to_length",
        )
    ),
    implied(f"{ACTOR}grad_clip", "read by FSDP only; Megatron's is optim.clip_grad"),
    read(f"{ACTOR}checkpoint.save_contents", "checkpoint.exportHuggingFace", text="hf_model: at the end of the job"),
    becomes(f"{ACTOR}checkpoint.async_save", "checkpoint.asynchronous"),
    implied(f"{ACTOR}checkpoint.*"),
    *optimizer_rows(ACTOR, "train.optimizer", 1e-6),
    becomes(
        f"{ACTOR}megatron.router_replay.mode",
        "algorithm.rolloutCorrection.routerReplay",
        "disabled",
        REPLAY,
        also=(f"{ACTOR}router_replay.mode",),
    ),
    *layout_rows(f"{ACTOR}megatron.", {"sequence_parallel": True}),
    becomes(f"{ACTOR}megatron.param_offload", "trainer.offload.parameters", False),
    becomes(f"{ACTOR}megatron.grad_offload", "trainer.offload.gradients", False),
    becomes(f"{ACTOR}megatron.optimizer_offload", "trainer.offload.optimizer", False),
    read(f"{ACTOR}megatron.use_dist_checkpointing", "model.megatronCheckpoint", False),
    read(f"{ACTOR}megatron.dist_checkpointing_path", "model.megatronCheckpoint"),
    becomes(f"{ACTOR}megatron.dtype", "model.dtype", "bfloat16", choice(bfloat16="bfloat16", float32="float32")),
    read(
        f"{ACTOR}megatron.dist_ckpt_optim_fully_reshardable",
        "checkpoint.asynchronous",
        False,
        text="true: not asynchronous",
    ),
    *megatron_rows(f"{ACTOR}megatron."),
    *recompute_rows(f"{ACTOR}megatron.override_transformer_config."),
    implied(f"{ACTOR}megatron.override_transformer_config.use_flash_attn", "attention is Transformer Engine's"),
    must(
        f"{ACTOR}megatron.override_transformer_config.use_distributed_optimizer",
        True,
        "the optimizer is always distributed",
    ),
    transformer_row(f"{ACTOR}megatron.override_transformer_config"),
    becomes(f"{ACTOR}megatron.override_ddp_config.overlap_grad_reduce", "trainer.overlap.gradReduce"),
    becomes(f"{ACTOR}megatron.override_ddp_config.overlap_param_gather", "trainer.overlap.paramGather"),
    lacks(f"{ACTOR}megatron.override_ddp_config.*", "of DistributedDataParallel only overlap is set"),
)

GUIDE = (
    becomes("system.tp_size", "trainer.parallelism.tensor", text="of older guides"),
    becomes("system.pp_size", "trainer.parallelism.pipeline", text="of older guides"),
    read("system.dp_size", "trainer.nodes, trainer.processesPerNode", text="of older guides"),
    implied("system.enable_hybrid_engine", "rollout.placement: colocated", also=("enable_hybrid_engine",)),
)

REFERENCE = (
    implied(f"{REF}strategy"),
    *same_layout_rows(f"{REF}megatron.", "the reference"),
    becomes(f"{REF}megatron.param_offload", "reference.offload", text="while there is a reference"),
    *(
        implied(f"{REF}megatron.{key}")
        for key in ("grad_offload", "optimizer_offload", "dtype", "override_ddp_config.*")
    ),
    read(f"{REF}megatron.use_dist_checkpointing", "", False, text="the reference is read as the policy is"),
    read(f"{REF}megatron.dist_checkpointing_path", "", text="the reference is read as the policy is"),
    implied(f"{REF}megatron.dist_ckpt_optim_fully_reshardable"),
    implied(f"{REF}megatron.router_replay.mode", "as the policy's"),
    *megatron_rows(f"{REF}megatron."),
    implied(f"{REF}megatron.override_transformer_config.*", "the reference runs with the policy's"),
    becomes(f"{REF}model.path", "reference.path", text="while there is a reference"),
    *(
        implied(f"{REF}{key}", ONE_BUDGET)
        for key in (
            "log_prob_micro_batch_size",
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
        )
    ),
    *(implied(f"{REF}{key}") for key in (*QUIET, *REF_QUIET)),
)
"""`becomes` of a reference is dropped where none is held: see `algorithm.reference`."""
ALGORITHM = (
    read("algorithm.adv_estimator", "algorithm.advantage", "gae"),
    read("algorithm.norm_adv_by_std_in_grpo", "algorithm.group.divideByStd", True),
    read("algorithm.gamma", "algorithm.gamma", 1.0),
    read("algorithm.lam", "algorithm.gaeLambda", 1.0),
    read("algorithm.use_kl_in_reward", "algorithm.kl", False),
    read("algorithm.kl_penalty", "algorithm.kl.estimator", "kl"),
    read("algorithm.kl_ctrl.type", "algorithm.kl.adaptive", "fixed"),
    read("algorithm.kl_ctrl.kl_coef", "algorithm.kl.coefficient", 0.001),
    read("algorithm.kl_ctrl.horizon", "algorithm.kl.adaptive.horizon", 10000),
    read("algorithm.kl_ctrl.target_kl", "algorithm.kl.adaptive.target", 0.1),
    read("algorithm.filter_groups.enable", "algorithm.dynamicSampling", False),
    read("algorithm.filter_groups.max_num_gen_batches", "algorithm.dynamicSampling.maxRounds", 0, text="0 becomes 64"),
    read("algorithm.filter_groups.metric", "", text="groups are filtered by their rewards"),
    implied("algorithm.filter_groups.max_inflight_gen_batches"),
    read("algorithm.rollout_correction.rollout_is", "algorithm.rolloutCorrection.importanceSampling"),
    read("algorithm.rollout_correction.rollout_is_threshold", "algorithm.rolloutCorrection.cap", 2.0),
    read("algorithm.rollout_correction.rollout_rs", "algorithm.rolloutCorrection.reject.level"),
    read(
        "algorithm.rollout_correction.rollout_rs_threshold",
        "algorithm.rolloutCorrection.reject.low, algorithm.rolloutCorrection.reject.high",
        text="verl bounds the inverse ratio: low = 1 / its high",
    ),
    becomes("algorithm.rollout_correction.bypass_mode", "algorithm.rolloutCorrection.bypass", False),
    lacks("algorithm.rollout_correction.loss_type", "the loss is PPO's", "ppo_clip"),
    lacks("algorithm.rollout_correction.rollout_is_batch_normalize", "weights are not normalised"),
    lacks("algorithm.use_pf_ppo", "samples are not drawn again by their reward"),
    implied("algorithm.pf_ppo.*", "read with use_pf_ppo only"),
    implied("algorithm.gdpo_reward_keys", "read by the estimator gdpo only"),
)

ROLLOUT_ROWS = (
    read(f"{ROLLOUT}name", "", "vllm", text="vLLM generates"),
    becomes(f"{ROLLOUT}n", "train.samplesPerPrompt", 1),
    becomes(f"{ROLLOUT}temperature", "rollout.sampling.temperature", 1.0),
    lacks(f"{ROLLOUT}top_p", "training samples from the whole distribution", 1, 1.0),
    lacks(f"{ROLLOUT}top_k", "training samples from the whole distribution", -1, 0),
    lacks(f"{ROLLOUT}do_sample", "training always samples", True),
    read(f"{ROLLOUT}nnodes", "rollout.placement, rollout.replicas", 0, also=("rollout.nnodes",)),
    read(f"{ROLLOUT}n_gpus_per_node", "rollout.replicas", 8, also=("rollout.n_gpus_per_node",)),
    read(f"{AR}hybrid_engine", "rollout.placement", True),
    read(f"{ROLLOUT}tensor_model_parallel_size", "rollout.tensorParallel", 2, text="within one node"),
    lacks(f"{ROLLOUT}data_parallel_size", "more servers take its place", 1),
    lacks(f"{ROLLOUT}pipeline_model_parallel_size", "a server is cut by tensor parallelism only", 1),
    read(f"{ROLLOUT}expert_parallel_size", "rollout.vllmArgs.enable-expert-parallel", 1),
    becomes(f"{ROLLOUT}gpu_memory_utilization", "rollout.vllmArgs.gpu-memory-utilization", 0.5),
    becomes(f"{ROLLOUT}max_num_seqs", "rollout.vllmArgs.max-num-seqs"),
    becomes(f"{ROLLOUT}max_num_batched_tokens", "rollout.vllmArgs.max-num-batched-tokens"),
    becomes(f"{ROLLOUT}enforce_eager", "rollout.vllmArgs.enforce-eager"),
    becomes(f"{ROLLOUT}enable_chunked_prefill", "rollout.vllmArgs.enable-chunked-prefill"),
    becomes(f"{ROLLOUT}enable_prefix_caching", "rollout.vllmArgs.enable-prefix-caching"),
    becomes(f"{ROLLOUT}scheduling_policy", "rollout.vllmArgs.scheduling-policy"),
    becomes(f"{ROLLOUT}quantization", "rollout.vllmArgs.quantization"),
    read(f"{ROLLOUT}engine_kwargs.vllm.*", "rollout.vllmArgs", text="underscores become dashes"),
    implied(f"{ROLLOUT}engine_kwargs.*", "of a server other than vLLM"),
    read(f"{ROLLOUT}val_kwargs.top_p", "evaluation.sampling.topP", 1.0),
    read(f"{ROLLOUT}val_kwargs.top_k", "evaluation.sampling.topK", -1),
    read(f"{ROLLOUT}val_kwargs.n", "evaluation.samplesPerPrompt", 1),
    read(f"{ROLLOUT}val_kwargs.temperature", "evaluation.sampling.temperature", 0),
    implied(f"{ROLLOUT}val_kwargs.do_sample", "verl reads the temperature alone; 0 is greedy"),
    lacks(f"{ROLLOUT}multi_turn.enable", AGENT),
    *(lacks(f"{ROLLOUT}multi_turn.{key}", AGENT, "") for key in ("tool_config_path", "interaction_config_path")),
    lacks(f"{ROLLOUT}multi_turn.format", AGENT, "hermes"),
    *(lacks(f"{ROLLOUT}multi_turn.max_{who}_turns", AGENT) for who in ("assistant", "user")),
    implied(f"{ROLLOUT}multi_turn.*", "read with tools or several turns only"),
    lacks(f"{ROLLOUT}agent.default_agent_loop", AGENT, "single_turn_agent"),
    lacks(f"{ROLLOUT}agent.agent_loop_config_path", AGENT, ""),
    implied(f"{ROLLOUT}agent.*", "read with an agent loop only"),
    lacks(f"{ROLLOUT}disaggregation.enabled", "a server prefills and decodes"),
    lacks(f"{ROLLOUT}ignore_eos", "a response ends at the end token"),
    implied(f"{ROLLOUT}enable_rollout_routing_replay", "algorithm.rolloutCorrection.routerReplay: rollout says it"),
    implied(f"{ROLLOUT}moe_tensor_parallel_size", "of a server other than vLLM"),
    *(implied(f"{ROLLOUT}{key}", SPEED) for key in ("enable_sleep_mode", "standalone_gpu_memory_utilization")),
    lacks(f"{ROLLOUT}qat.enable", "weights are not quantised"),
    lacks(f"{ROLLOUT}mtp.enable", "multi-token prediction is not used"),
    read(f"{ROLLOUT}over_sample_rate", "train.overSampling", 0, text="1 / (1 - it)"),
    implied(f"{ROLLOUT}max_model_len", "is maxPromptTokens + maxTokens"),
    implied(f"{ROLLOUT}prompt_length", "is data.maxPromptTokens"),
    implied(f"{ROLLOUT}response_length", "is maxTokens"),
    implied(f"{ROLLOUT}single_turn_response_length", "is maxTokens, or maxTokens of an agent's turns"),
    implied(f"{ROLLOUT}calculate_log_probs", "vLLM's log-probabilities are always compared with the trainer's"),
    implied(f"{ROLLOUT}free_cache_engine", "colocated servers give their memory back while the policy is trained"),
    implied(f"{ROLLOUT}checkpoint_engine.*", "weights go to the rollouts by NCCL"),
    *(
        implied(f"{ROLLOUT}{key}", ONE_BUDGET)
        for key in (
            "log_prob_micro_batch_size",
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
        )
    ),
    *(implied(f"{ROLLOUT}{key}", SPEED) for key in ROLLOUT_QUIET),
)

CRITIC = (
    read("critic.model.path", "critic.path"),
    *optimizer_rows("critic.", "critic.optimizer", 1e-5),
    becomes("critic.cliprange_value", "critic.clip", 0.5),
    *same_layout_rows("critic.megatron.", "the critic"),
    becomes("critic.megatron.param_offload", "critic.offload.parameters"),
    becomes("critic.megatron.grad_offload", "critic.offload.gradients"),
    becomes("critic.megatron.optimizer_offload", "critic.offload.optimizer"),
    implied("critic.megatron.router_replay.mode", "as the policy's"),
    *megatron_rows("critic.megatron."),
    *(
        implied(f"critic.megatron.{key}", "as the policy's")
        for key in ("dtype", "override_ddp_config.*", "dist_ckpt_optim_fully_reshardable")
    ),
    *(
        implied(f"critic.megatron.{key}", "critic.path says it")
        for key in ("use_dist_checkpointing", "dist_checkpointing_path")
    ),
    implied("critic.megatron.override_transformer_config.*", "the critic runs with the policy's"),
    read("critic.ppo_epochs", "", text="the critic learns in the policy's passes and mini-batches"),
    read("critic.ppo_mini_batch_size", "", text="the critic learns in the policy's passes and mini-batches"),
    *(implied(f"critic.{key}", ONE_BUDGET) for key in CRITIC_BUDGETS),
    *(implied(f"critic.{key}") for key in (*QUIET, *CRITIC_QUIET)),
    becomes("trainer.critic_warmup", "critic.warmupSteps", 0),
)

OVERLONG = "overlong_buffer_cfg"
REWARD = (
    read(
        "reward.custom_reward_function.path",
        "rewards[].python.path",
        also=("custom_reward_function.path",),
        text="with interface: verl",
    ),
    read(
        "reward.custom_reward_function.name",
        "rewards[].python.function",
        "compute_score",
        also=("custom_reward_function.name",),
    ),
    *(read(f"{key}custom_reward_function.reward_kwargs.*", "rewards[].python.arguments") for key in ("reward.", "")),
    read("reward.reward_manager.name", "algorithm.overlong", "naive", also=("reward_model.reward_manager",)),
    *(
        read(
            f"reward.reward_kwargs.{OVERLONG}.{key}",
            target,
            default,
            also=(f"reward_model.reward_kwargs.{OVERLONG}.{key}", f"reward_model.overlong_buffer.{key}"),
        )
        for key, target, default in (
            ("enable", "algorithm.overlong", False),
            ("len", "algorithm.overlong.bufferTokens", None),
            ("penalty_factor", "algorithm.overlong.penalty", None),
        )
    ),
    *(
        implied(f"{key}.reward_kwargs.{name}")
        for key in ("reward", "reward_model")
        for name in (f"{OVERLONG}.log", "max_resp_len")
    ),
    *(
        lacks(f"{key}.reward_kwargs.*", "a reward function gets no further arguments")
        for key in ("reward", "reward_model")
    ),
    implied("reward_model.overlong_buffer.log"),
    read("reward.reward_model.enable", "rewards[].vllm", False, also=("reward_model.enable",)),
    read("reward.reward_model.model_path", "rewards[].vllm", also=("reward_model.model.path",)),
    implied("reward.reward_model.*"),
    lacks(
        "reward.sandbox_fusion.url",
        "code is judged by an http reward of your own",
        also=("reward_model.sandbox_fusion.url", "sandbox_fusion.url"),
    ),
    *(implied(f"{key}.*", "read with a sandbox only") for key in ("reward.sandbox_fusion", "sandbox_fusion")),
    *(implied(f"reward.{key}") for key in ("num_workers", "reward_manager.source", "reward_manager.module.*")),
    *(implied(f"reward_manager.{key}") for key in ("source", "name", "module.*")),
    *(implied(f"reward_model.{key}", "read with a reward model only") for key in REWARD_MODEL_QUIET),
)
TRAINER = (
    read("trainer.nnodes", "trainer.nodes", 1),
    read("trainer.n_gpus_per_node", "trainer.processesPerNode", 8),
    read("trainer.total_training_steps", "train.steps"),
    read("trainer.total_epochs", "train.epochs", 30, also=("trainer.num_epochs",), text="with --rows: train.steps"),
    becomes("trainer.save_freq", "checkpoint.everySteps", -1, at_least(0), text="-1 becomes 0"),
    becomes("trainer.test_freq", "evaluation.everySteps", -1, at_least(0), text="-1 becomes 0"),
    lacks("trainer.val_before_train", "evaluation begins before the first step", True),
    read("trainer.max_actor_ckpt_to_keep", "checkpoint.keepLast", text="unset: 64, the most"),
    implied("trainer.max_critic_ckpt_to_keep", "a checkpoint is whole"),
    becomes(
        "trainer.resume_mode", "checkpoint.resume", "auto", choice(auto="auto", disable="never", resume_path="auto")
    ),
    lacks("trainer.resume_from_path", "checkpoint.resumeFrom takes an RLJob's checkpoints, not verl's", ""),
    read("trainer.default_local_dir", "checkpoint.path", text="unset: checkpoints/project/experiment"),
    read("trainer.project_name", "checkpoint.path", "verl_examples"),
    read("trainer.experiment_name", "metadata.name", "gsm8k"),
    read(
        "trainer.logger",
        "env",
        ["console", "wandb"],
        text="wandb: WANDB_PROJECT; mlflow: MLFLOW_EXPERIMENT_NAME; console and tensorboard are always written",
    ),
    read(f"{AR}nccl_timeout", "lifecycle.stallTimeoutSeconds", text="if longer than the default"),
    becomes("trainer.val_only", "evaluation.only", False),
    lacks("trainer.default_hdfs_dir", "checkpoints are on the volume"),
    becomes("trainer.rollout_data_dir", "train.batches.record", convert=bool),
    lacks("trainer.device", "trainers run on NVIDIA GPUs", "cuda", "gpu"),
    read("trainer.v1.trainer_mode", "train.staleness, train.overSampling, train.partialRollouts", "sync"),
    read("trainer.v1.separate_async.parameter_sync_step", "", text="weights are published after every step"),
    implied("trainer.v1.*"),
    *(
        implied(f"trainer.{key}")
        for key in (
            "balance_batch",
            "esi_redundant_time",
            "log_val_generations",
            "validation_data_dir",
            "use_v1",
            "use_legacy_worker_impl",
            "del_local_ckpt_after_load",
            "ray_wait_register_center_timeout",
            "profile_steps",
            "worker_nsight_options.*",
            "controller_nsight_options.*",
        )
    ),
    read("async_training.staleness_threshold", "train.staleness", text="at most 1"),
    read(
        "async_training.trigger_parameter_sync_step",
        "train.promptsPerStep, train.miniBatches",
        4,
        text="where prompts are streamed; weights are published after every step",
    ),
    read("async_training.require_batches", "train.promptsPerStep, train.miniBatches", 1),
    read("rollout.total_rollout_steps", "train.steps", text="prompts in all"),
    lacks("async_training.partial_rollout", "see train.partialRollouts"),
    implied("async_training.*"),
    lacks("rollout.*", "rollouts follow the trainer's steps"),
    read("distillation.enabled", "algorithm.distillation", False, text="refused: to be written by hand"),
    implied("distillation.*", "read with distillation only"),
    must("actor@actor_rollout_ref.actor", "megatron_actor", "the trainer is Megatron: choose trainer.parallelism"),
    must("model", "hf_model", "the trainer is Megatron: choose trainer.parallelism"),
    read("model_engine", "", text="of engines other than megatron the layout is not taken over"),
    *(implied(f"{key}.*") for key in ("transfer_queue", "global_profiler", "skip", "ray_kwargs", "hydra", "ray_init")),
    read("export.*", "env", text="of a script: NCCL_, VLLM_, TORCH_ and WANDB_ variables"),
    implied("defaults"),
)

PPO_ROWS = (*POLICY, *DATA, *REWARD, *ALGORITHM, *ACTOR_ROWS, *GUIDE, *CRITIC, *REFERENCE, *ROLLOUT_ROWS, *TRAINER)
