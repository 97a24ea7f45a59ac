"""What becomes of the keys of ROLL's YAML: RLVR, SFT and DPO pipelines."""

from kubectl_rljob.importer.megatron import layout_rows, recompute_rows, same_layout_rows, transformer_row
from kubectl_rljob.importer.table import Row, becomes, implied, lacks, must, read
from kubectl_rljob.importer.values import IMAGES, REPLAY, choice, items

DTYPES = choice(bf16="bfloat16", fp32="float32", float32="float32", bfloat16="bfloat16")
DECAYS = choice(constant="constant", constant_with_warmup="constant", linear="linear", cosine="cosine")
FSDP = (
    "fsdp_size",
    "param_dtype",
    "reduce_dtype",
    "reshard_after_forward",
    "offload_policy",
    "wrap_policy.*",
    "cpu_offload",
    "efsdp_size",
    "ep_size",
    "moe_use_grouped_mm",
    "apply_expert_patch",
    "apply_tiled_mlp",
    "tiled_num_shards",
    "use_batched_model_update",
)
GONE = "vLLM has no such setting any more"
MEDIA = "models read texts and images only"
VIDEO = (
    "video_total_pixels",
    "video_min_pixels",
    "video_max_pixels",
    "video_fps",
    "video_max_frames",
    "video_folder",
    "audio_folder",
)
REWARD_KEYS = ("worker_cls", "tag_included")

COMMON = (
    read("exp_name", "metadata.name"),
    read("pretrain", "model.path"),
    read("checkpoint_config.output_dir", "checkpoint.path"),
    lacks("checkpoint_config.type", "checkpoints are on the volume", "file_system"),
    read("output_dir", "checkpoint.path", "./output"),
    becomes("seed", "data.seed", 42),
    read("max_steps", "train.steps"),
    becomes("save_steps", "checkpoint.everySteps", 50),
    read("eval_steps", "evaluation.everySteps", also=("validation.eval_steps",)),
    read("max_ckpt_to_keep", "checkpoint.keepLast", text="0 or unset: 64, the most"),
    becomes("resume_from_checkpoint", "checkpoint.resume", convert=lambda value: "auto" if value else "never"),
    read("num_gpus_per_node", "trainer.processesPerNode", 8),
    implied("num_nodes", "device_mapping says it"),
    read("system_envs.*", "env", text="NCCL_, VLLM_, TORCH_ and WANDB_ variables"),
    read("track_with", "env", text="wandb: WANDB_PROJECT"),
    read("tracker_kwargs.project", "env"),
    implied("tracker_kwargs.*"),
    *(
        implied(key)
        for key in (
            "hydra.*",
            "defaults",
            "logging_dir",
            "logging_steps",
            "offload_nccl",
            "rpc_timeout",
            "model_download_type",
            "profiler_output_dir",
        )
    ),
    implied("global_template", "the tokenizer's chat template takes its place"),
    *(implied(f"lora_{key}", "read where model_args names it") for key in ("rank", "alpha", "target")),
    lacks("rollout_mock.enable", "see train.batches"),
    implied("rollout_mock.*"),
)


def training(prefix: str) -> tuple[Row, ...]:
    """The role that learns; `prefix` with its dot."""
    config = f"{prefix}strategy_args.strategy_config."
    return (
        *_optimizer(f"{prefix}training_args.", "train.optimizer", "max_grad_norm"),
        *_passes(f"{prefix}training_args."),
        *_model_and_data(prefix),
        *_megatron(prefix, config),
        *_batches(prefix),
    )


def _optimizer(t: str, target: str, *clip: str) -> tuple[Row, ...]:
    """With the defaults of transformers' TrainingArguments. `clip`: further names of the key that bounds the gradient's norm."""
    return (
        becomes(f"{t}learning_rate", f"{target}.learningRate", 5e-5),
        becomes(f"{t}weight_decay", f"{target}.weightDecay", 0.0),
        becomes(f"{t}lr_scheduler_type", f"{target}.decay", "linear", DECAYS, text="its default is linear"),
        read(f"{t}warmup_steps", f"{target}.warmupSteps", 0),
        read(f"{t}warmup_ratio", f"{target}.warmupSteps", 0.0),
        becomes(f"{t}adam_beta1", f"{target}.beta1", 0.9),
        becomes(f"{t}adam_beta2", f"{target}.beta2", 0.999, text="its default is 0.999"),
        becomes(f"{t}adam_epsilon", f"{target}.epsilon", 1e-8),
        becomes(f"{t}max_grad_norm", f"{target}.clipGrad", 1.0, also=clip),
    )


def _passes(t: str) -> tuple[Row, ...]:
    return (
        read(f"{t}per_device_train_batch_size", "train.miniBatches, train.tokensPerMicroBatch", 1),
        read(
            f"{t}gradient_accumulation_steps", "train.miniBatches", 1, text="x batch per device x data-parallel ranks"
        ),
        read(f"{t}num_train_epochs", "train.epochs", text="with max_steps: not read"),
    )


def _model_and_data(prefix: str) -> tuple[Row, ...]:
    return (
        becomes(f"{prefix}model_args.dtype", "model.dtype", "bf16", DTYPES),
        read(f"{prefix}model_args.lora_rank", "model.lora.rank"),
        read(f"{prefix}model_args.lora_alpha", "model.lora.alpha", text="unset: twice lora_rank"),
        read(f"{prefix}model_args.lora_target", "model.lora.targets", "all"),
        lacks(f"{prefix}model_args.adapter_name_or_path", "name adapters to begin from in model.lora.path"),
        becomes(f"{prefix}router_replay.mode", "algorithm.rolloutCorrection.routerReplay", "disabled", REPLAY),
        implied(f"{prefix}router_replay.*"),
        lacks(f"{prefix}model_args.freeze_module_prefix", "all parameters are trained"),
        *(
            implied(f"{prefix}model_args.{key}")
            for key in ("attn_implementation", "flash_attn", "model_type", "ulysses_size", "model_name_or_path")
        ),
        implied(f"{prefix}model_args.disable_gradient_checkpointing", "trainer.recompute says what is computed again"),
        read(f"{prefix}data_args.file_name", "data.train"),
        read(f"{prefix}data_args.dataset_dir", "", text="file_name says it"),
        lacks(f"{prefix}data_args.domain_interleave_probs.*", "data.weights mixes files, and not domains"),
        read(f"{prefix}data_args.interleave_probs", "data.weights", text="one for each file"),
        *(lacks(f"{prefix}data_args.{key}", IMAGES) for key in ("image_max_pixels", "image_min_pixels")),
        *(implied(f"{prefix}data_args.{key}") for key in ("preprocessing_num_workers", "max_samples_workers")),
        *(lacks(f"{prefix}data_args.{key}", MEDIA) for key in VIDEO),
        lacks(f"{prefix}data_args.custom_data_kwargs_func", "rows are read as they are"),
        implied(f"{prefix}data_args.template", "the tokenizer's chat template takes its place"),
    )


def _megatron(prefix: str, c: str) -> tuple[Row, ...]:
    return (
        read(
            f"{prefix}strategy_args.strategy_name",
            "",
            "megatron_train",
            text="of other strategies the layout is not taken over",
        ),
        *layout_rows(c, {"sequence_parallel": False}),
        *recompute_rows(c),
        must(f"{c}use_distributed_optimizer", True, "the optimizer is always distributed"),
        becomes(f"{c}overlap_grad_reduce", "trainer.overlap.gradReduce"),
        becomes(f"{c}overlap_param_gather", "trainer.overlap.paramGather"),
        *(implied(f"{c}{key}") for key in ("delay_grad_reduce", "ddp_bucket_size", "distrib_optim_fully_reshardable")),
        lacks(f"{c}optimizer_cpu_offload", "see trainer.offload.optimizer"),
        *(implied(f"{c}{key}", "of FSDP") for key in FSDP),
        *(read(f"{c}additional_configs.{key}", "trainer.transformerConfig") for key in ("moe_permute_fusion",)),
        transformer_row(c.removesuffix(".")),
    )


def _batches(prefix: str) -> tuple[Row, ...]:
    return (
        read(f"{prefix}device_mapping", "trainer.nodes, trainer.processesPerNode"),
        read(
            f"{prefix}is_offload_states",
            "trainer.offload.parameters, trainer.offload.gradients, trainer.offload.optimizer, critic.offload",
            True,
            also=("is_offload_states",),
            text="its default is true, where the rollouts are on the trainer's GPUs",
        ),
        read(
            f"{prefix}is_offload_optimizer_states_in_train_step",
            "",
            False,
            also=("is_offload_optimizer_states_in_train_step",),
            text="trainer.offload.optimizer says it",
        ),
        *(
            implied(f"{prefix}{key}")
            for key in (
                "infer_batch_size",
                "offload_nccl",
                "worker_cls",
                "world_size",
                "use_remove_padding",
                "use_dynamic_batching_in_infer",
            )
        ),
        read(f"{prefix}use_dynamic_batching_in_train", "train.tokensPerMicroBatch", False),
        read(f"{prefix}max_tokens_per_microbatch_in_train", "train.tokensPerMicroBatch"),
        read(f"{prefix}use_sequence_packing", "train.tokensPerMicroBatch", False),
        read(f"{prefix}sequence_packing_args.max_packed_sequence_length_train", "train.tokensPerMicroBatch"),
        *(implied(f"{prefix}{key}") for key in ("sequence_packing_args.*", "max_tokens_per_microbatch_in_infer")),
        *(implied(f"{prefix}sequence_length_round_in_{key}") for key in ("train", "infer")),
    )


REFERENCE = (
    *same_layout_rows("reference.strategy_args.strategy_config.", "the reference"),
    *(
        implied(f"reference.{key}", "the reference runs on the trainer's ranks")
        for key in ("strategy_args.*", "device_mapping", "infer_batch_size")
    ),
    *(
        implied(f"reference.{key}")
        for key in ("model_args.*", "data_args.*", "offload_nccl", "use_sequence_packing", "sequence_packing_args.*")
    ),
    *(implied(f"reference.{key}") for key in ("use_dynamic_batching_in_infer", "max_tokens_per_microbatch_in_infer")),
    *(implied(f"reference.sequence_length_round_in_{key}") for key in ("train", "infer")),
)

ALGORITHM = (
    becomes("rollout_batch_size", "train.promptsPerStep", 128),
    becomes("num_return_sequences_in_group", "train.samplesPerPrompt", 1),
    becomes("prompt_length", "data.maxPromptTokens", 1024),
    read("response_length", "rollout.sampling.maxTokens", also=("actor_infer.generating_args.max_new_tokens",)),
    read("sequence_length", "rollout.sampling.maxTokens", text="if there is no response_length"),
    becomes("ppo_epochs", "train.epochsPerStep", 1),
    read("adv_estimator", "algorithm.advantage", "gae"),
    read("norm_mean_type", "algorithm.advantage", text="group: grpo"),
    read("norm_std_type", "algorithm.group.divideByStd"),
    read("whiten_advantages", "algorithm.advantage", False),
    read("gamma", "algorithm.gamma", 1.0),
    read("lambd", "algorithm.gaeLambda", 0.95),
    read("pg_clip", "algorithm.clip.low, algorithm.clip.high", 0.2),
    read("use_pg_clip_range", "algorithm.clip", False),
    read("pg_clip_low", "algorithm.clip.low", 0.2),
    read("pg_clip_high", "algorithm.clip.high", 0.28),
    read("dual_clip_loss", "algorithm.clip.dual", False, text="1 + 2 pg_clip"),
    read("use_kl_loss", "algorithm.kl", False),
    read("kl_loss_coef", "algorithm.kl.coefficient", 0.0, text="always k3 in the loss"),
    read("add_token_level_kl", "algorithm.kl", False, text="in the reward"),
    read("init_kl_coef", "algorithm.kl.coefficient", 0.2),
    read("kl_penalty", "algorithm.kl.estimator", "kl"),
    read("target_kl", "algorithm.kl.adaptive.target"),
    read("kl_horizon", "algorithm.kl.adaptive.horizon", 10000),
    becomes("entropy_loss_coef", "algorithm.entropyCoefficient", 0.0),
    read("loss_agg_mode", "algorithm.aggregation", "seq-mean-token-mean", text="its default is seq-mean-token-mean"),
    becomes("max_len_mask", "algorithm.overlong.filter", False),
    read("importance_sampling", "algorithm.loss", "token", text="seq: gspo"),
    read("train_infer_correction.is_weight.enabled", "algorithm.rolloutCorrection", False),
    read("train_infer_correction.is_weight.weight_type", "algorithm.rolloutCorrection.importanceSampling", "token"),
    read("train_infer_correction.is_weight.upper_bound", "algorithm.rolloutCorrection.cap", 2.0),
    lacks("train_infer_correction.filters", "see algorithm.rolloutCorrection.reject", []),
    implied("train_infer_correction.*"),
    read("async_generation_ratio", "train.staleness", 0),
    becomes("critic_warmup", "critic.warmupSteps", 0),
    read("value_clip", "critic.clip"),
    read("reward_clip", "algorithm.rewardClip", text="of rewards normalised by group: algorithm.advantageClip"),
    read("advantage_clip", "algorithm.advantageClip"),
    read("difficulty_mask", "algorithm.difficulty", False),
    read("difficulty_low_threshold", "algorithm.difficulty.low", 0.0),
    read("difficulty_high_threshold", "algorithm.difficulty.high", 1.0),
    *(
        lacks(key, "samples are not weighted")
        for key in ("difficulty_loss_weight", "length_loss_weight", "error_max_len_clip")
    ),
    lacks("reward_norm", "rewards are compared by algorithm.advantage"),
    *(
        lacks(key, "rewards are compared by algorithm.advantage")
        for key in ("reward_shift", "reward_scale", "use_reward_scaling")
    ),
    read("pg_variant", "algorithm.loss", "vanilla", also=("actor_train.pg_variant",)),
    *(
        lacks(key, "the losses are ppo, gspo and cispo")
        for key in ("rl_loss_coef", "positive_loss_coef", "use_topr_neg_loss_coef")
    ),
    lacks("use_additional_prompts", "see train.overSampling", also=("is_use_additional_prompts",)),
    implied("max_running_requests", also=("max_additional_running_prompts",)),
    implied("is_num_return_sequences_expand"),
    lacks("mtp_training_mode", "multi-token prediction is not trained"),
    read("reward_pretrain", "critic.path"),
    read("actor_train.data_args.messages", "data.promptKey", "messages"),
    *(
        read(f"actor_train.data_args.{key}", field, default)
        for key, field, default in (
            ("prompt", "data.promptKey", None),
            ("response", "data.answerKey", None),
            ("tag", "data.dataSourceKey", "tag"),
        )
    ),
)
INFER = (
    read("actor_infer.strategy_args.strategy_name", "", "vllm", text="vLLM generates"),
    read("actor_infer.device_mapping", "rollout.placement, rollout.replicas"),
    read("actor_infer.num_gpus_per_worker", "rollout.tensorParallel"),
    read("actor_infer.strategy_args.strategy_config.tensor_parallel_size", "rollout.tensorParallel"),
    lacks(
        "actor_infer.strategy_args.strategy_config.pipeline_parallel_size",
        "a server is cut by tensor parallelism only",
        1,
    ),
    becomes(
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
        "rollout.vllmArgs.gpu-memory-utilization",
        also=("actor_infer.strategy_args.strategy_config.mem_fraction_static",),
    ),
    becomes("actor_infer.strategy_args.strategy_config.block_size", "rollout.vllmArgs.block-size"),
    becomes("actor_infer.strategy_args.strategy_config.enforce_eager", "rollout.vllmArgs.enforce-eager"),
    becomes("actor_infer.strategy_args.strategy_config.max_num_seqs", "rollout.vllmArgs.max-num-seqs"),
    becomes(
        "actor_infer.strategy_args.strategy_config.max_num_batched_tokens", "rollout.vllmArgs.max-num-batched-tokens"
    ),
    becomes(
        "actor_infer.strategy_args.strategy_config.enable_prefix_caching", "rollout.vllmArgs.enable-prefix-caching"
    ),
    implied("actor_infer.strategy_args.strategy_config.max_model_len", "is maxPromptTokens + maxTokens"),
    implied("actor_infer.strategy_args.strategy_config.disable_mm_preprocessor_cache", GONE),
    *(
        implied(f"actor_infer.strategy_args.strategy_config.{key}")
        for key in (
            "load_format",
            "sleep_level",
            "optimization_level",
            "cuda_graph_sizes",
            "cudagraph_capture_sizes",
            "distributed_executor_backend",
            "enable_memory_saver",
            "disable_log_stats",
        )
    ),
    becomes("actor_infer.generating_args.temperature", "rollout.sampling.temperature", 1.0),
    lacks(
        "actor_infer.generating_args.top_p",
        "training samples from the whole distribution, of which it computes log-probabilities",
        1,
        1.0,
    ),
    lacks(
        "actor_infer.generating_args.top_k",
        "training samples from the whole distribution, of which it computes log-probabilities",
        0,
        -1,
    ),
    lacks("actor_infer.generating_args.repetition_penalty", "training samples from the whole distribution", 1, 1.0),
    becomes("actor_infer.generating_args.stop_strings", "rollout.sampling.stop", convert=items),
    lacks("actor_infer.generating_args.num_beams", "responses are sampled", 1),
    implied("actor_infer.generating_args.num_return_sequences", "is num_return_sequences_in_group"),
    implied("actor_infer.offload_nccl"),
    implied("reward_system_config.*"),
    *(
        implied(f"actor_infer.{key}")
        for key in ("model_args.*", "data_args.*", "infer_batch_size", "world_size", "worker_cls")
    ),
    read("validation.data_args.file_name", "data.validation"),
    implied("validation.data_args.*"),
    read("validation.generating_args.temperature", "evaluation.sampling.temperature", 0.0),
    implied("validation.generating_args.max_new_tokens", "is response_length"),
    read("validation.generating_args.top_p", "evaluation.sampling.topP", 1.0),
    read("validation.generating_args.top_k", "evaluation.sampling.topK", 0),
    lacks("validation.generating_args.num_beams", "responses are sampled", 1),
    read("validation.generating_args.num_return_sequences", "evaluation.samplesPerPrompt", 1),
    read("rewards.*", "rewards", text="by worker_cls, for the tags of tag_included"),
    lacks("reward_model.*", "rewards are in spec.rewards"),
)
CRITIC = (
    *_optimizer("critic.training_args.", "critic.optimizer"),
    *(
        implied(f"critic.training_args.{key}", "the critic learns in the policy's batches")
        for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs")
    ),
    *same_layout_rows("critic.strategy_args.strategy_config.", "the critic"),
    *(
        implied(f"critic.{key}", "the critic is on the trainer's ranks, in their layout")
        for key in ("strategy_args.*", "device_mapping", "infer_batch_size")
    ),
    *(implied(f"critic.{key}") for key in ("model_args.*", "data_args.*")),
)

SUPERVISED = (
    becomes("sequence_length", "data.maxTokens", 1024),
    read("prompt_key", "data.promptKey", "instruction"),
    read("query_key", "data.format", text="alpaca, with instruction, input and output"),
    read("response_key", "data.responseKey"),
    lacks("system_key", "the system prompt is the data's, or the chat template's"),
    becomes("chosen_key", "data.chosenKey"),
    becomes("rejected_key", "data.rejectedKey"),
    read("ipo", "dpo.loss", False),
    becomes("beta", "dpo.beta"),
    becomes("label_smoothing", "dpo.labelSmoothing"),
    read("validation.data_args.file_name", "data.validation"),
    implied("validation.data_args.*"),
)

RL_ROWS = (*COMMON, *training("actor_train."), *ALGORITHM, *INFER, *CRITIC, *REFERENCE)
SFT_ROWS = (*COMMON, *training("sft_train."), *SUPERVISED)
DPO_ROWS = (*COMMON, *training("actor_train."), *SUPERVISED, *REFERENCE)
