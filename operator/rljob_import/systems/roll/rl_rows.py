"""What becomes of the keys of ROLL's RLVR pipeline."""

from rljob_import.shared.megatron import same_layout_rows
from rljob_import.shared.values import MULTI_TOKEN, items
from rljob_import.systems.roll.rows import COMMON, REFERENCE, STEPS, optimizer_rows, training
from rljob_import.table import becomes, implied, lacks, read

GONE = "vLLM has no such setting any more"
REWARD_KEYS = ("worker_cls", "tag_included")
WHOLE = "training samples from the whole distribution, of which it computes log-probabilities"

ALGORITHM = (
    read("is_pure_opd", "algorithm.distillation.reference", False, text="the teacher alone, without rewards"),
    read("use_opd", "algorithm.distillation.reference", False, text="the teacher next to rewards"),
    *(implied(key) for key in ("pure_opd_pipeline_type", "rollout_dump_dir")),
    becomes("rollout_batch_size", "train.promptsPerStep", 128),
    becomes("num_return_sequences_in_group", "train.samplesPerPrompt", 1),
    becomes("prompt_length", "data.maxPromptTokens", 1024),
    read("response_length", "rollout.sampling.maxTokens", text="if there is no sequence_length"),
    read("sequence_length", "rollout.sampling.maxTokens", text="- prompt_length"),
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
    read("pg_clip_high", "algorithm.clip.high", 0.2),
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
    read("train_infer_correction.is_weight.upper_bound", "algorithm.rolloutCorrection.cap", 1.2),
    lacks("train_infer_correction.is_weight.detach", "weights are constants of the loss", True),
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
    lacks("mtp_training_mode", MULTI_TOKEN),
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
    becomes(
        "actor_infer.generating_args.temperature",
        "rollout.sampling.temperature",
        0.95,
        text="its default is 0.95",
    ),
    read("actor_infer.generating_args.top_p", "", 0.7, text=WHOLE),
    read("actor_infer.generating_args.top_k", "", 50, text=WHOLE),
    lacks("actor_infer.generating_args.repetition_penalty", "training samples from the whole distribution", 1, 1.0),
    becomes("actor_infer.generating_args.stop_strings", "rollout.sampling.stop", convert=items),
    lacks("actor_infer.generating_args.num_beams", "responses are sampled", 1),
    implied("actor_infer.generating_args.num_return_sequences", "is num_return_sequences_in_group"),
    implied("actor_infer.generating_args.max_new_tokens", "ROLL sets it to sequence_length - prompt_length"),
    implied("actor_infer.offload_nccl"),
    implied("reward_system_config.*"),
    *(
        implied(f"actor_infer.{key}")
        for key in ("model_args.*", "data_args.*", "infer_batch_size", "world_size", "worker_cls")
    ),
    read("validation.data_args.file_name", "data.validation"),
    implied("validation.data_args.*"),
    read("validation.generating_args.temperature", "evaluation.sampling.temperature", 0.95),
    implied("validation.generating_args.max_new_tokens", "ROLL sets it to sequence_length - prompt_length"),
    read("validation.generating_args.top_p", "evaluation.sampling.topP", 0.7),
    read("validation.generating_args.top_k", "evaluation.sampling.topK", 50),
    lacks("validation.generating_args.num_beams", "responses are sampled", 1),
    read("validation.generating_args.num_return_sequences", "evaluation.samplesPerPrompt", 1),
    read("rewards.*", "rewards", text="by worker_cls, for the tags of tag_included"),
    lacks("reward_model.*", "rewards are in spec.rewards"),
)
CRITIC = (
    *optimizer_rows("critic.training_args.", "critic.optimizer"),
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

RL_ROWS = (*COMMON, STEPS, *training("actor_train."), *ALGORITHM, *INFER, *CRITIC, *REFERENCE)
