"""What becomes of the keys of Trinity-RFT's YAML."""

from kubectl_rljob.importer.megatron import layout_rows, recompute_rows, same_layout_rows, transformer_row
from kubectl_rljob.importer.table import Row, becomes, implied, lacks, must, read
from kubectl_rljob.importer.values import REPLAY, at_least, choice
from kubectl_rljob.importer.verl.rows import megatron_rows, optimizer_rows

CONFIG = "trainer.trainer_config."
ACTOR, REF, CRITIC = (f"{CONFIG}{part}." for part in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"))
TASKS = "buffer.explorer_input.taskset."
DECAYS = choice(constant="constant", linear="linear", cosine="cosine")
ADVANTAGES = ("grpo", "ppo", "rloo", "reinforceplusplus", "on_policy_distill")
SUBSET = "put the files of this subset in place"
DISTRIBUTION = "training samples from the whole distribution"

RUN = (
    read("mode", "task", "both"),
    read("project", "checkpoint.path", "Trinity-RFT"),
    read("name", "metadata.name", "rft"),
    read("checkpoint_root_dir", "checkpoint.path"),
    becomes("continue_from_checkpoint", "checkpoint.resume", convert=lambda value: "auto" if value else "never"),
    *(
        implied(key)
        for key in (
            "group",
            "ray_namespace",
            "log.*",
            "monitor.cache_root_dir",
            "monitor.enable_ray_timeline",
            "monitor.monitor_args.*",
        )
    ),
    lacks("stages", "a job has one task"),
    lacks("data_processor.*", "data and experiences are not processed on the way"),
    lacks("service.*", "there are no further services"),
    read("monitor.monitor_type", "env", "tensorboard", text="wandb: WANDB_PROJECT"),
)

EVERY_MODEL = (
    read("model.model_path", "model.path"),
    becomes("model.trust_remote_code", "model.trustRemoteCode"),
    lacks("model.custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    lacks("model.rope_scaling", "the model is as its config.json says"),
    read("model.lora_configs", "model.lora", text="the first of them"),
    lacks("model.external_model.*", "servers are the job's own"),
    implied("model.enable_prompt_truncation", "longer prompts are left out and counted"),
    implied("model.logprobs"),
    lacks("model.tinker.enable", "training is on GPUs of the job"),
)

MODEL = (
    *EVERY_MODEL,
    becomes("model.critic_model_path", "critic.path"),
    read("model.max_prompt_tokens", "data.maxPromptTokens", text="unset: max_model_len - max_response_tokens"),
    read("model.max_response_tokens", "rollout.sampling.maxTokens", 1024),
    read("model.max_model_len", "data.maxPromptTokens"),
    *(
        lacks(f"model.{key}", DISTRIBUTION, *neutral)
        for key, neutral in (("top_p", (1, 1.0)), ("top_k", (-1, 0)), ("repetition_penalty", (1, 1.0)))
    ),
    lacks("model.min_response_tokens", DISTRIBUTION, 0, 1),
    becomes(
        "model.enable_thinking",
        "data.chatTemplate.arguments.enable_thinking",
        also=("explorer.rollout_model.enable_thinking",),
    ),
)

OPTIMIZER = (
    becomes("algorithm.optimizer.lr", "train.optimizer.learningRate", 1e-6, also=(f"{ACTOR}optim.lr",)),
    read(
        "algorithm.optimizer.lr_warmup_steps",
        "train.optimizer.warmupSteps",
        -1,
        also=(f"{ACTOR}optim.lr_warmup_steps",),
    ),
    read("algorithm.optimizer.lr_warmup_steps_ratio", "train.optimizer.warmupSteps", 0.0),
    read("algorithm.optimizer.min_lr_ratio", "train.optimizer.minLearningRate", 0.01, text="its default is 0.01"),
    becomes("algorithm.optimizer.lr_scheduler_type", "train.optimizer.decay", "constant", DECAYS),
    read(
        "algorithm.optimizer.betas",
        "train.optimizer.beta1, train.optimizer.beta2",
        [0.9, 0.999],
        text="its default is 0.9, 0.999",
    ),
    becomes("algorithm.optimizer.weight_decay", "train.optimizer.weightDecay", 0.01, text="its default is 0.01"),
    becomes(
        "algorithm.optimizer.clip_grad",
        "train.optimizer.clipGrad",
        1.0,
        also=("trainer.grad_clip", "trainer.actor_grad_clip"),
    ),
    lacks("algorithm.optimizer.optimizer_type", "the optimizer is AdamW", "adam", "adamw"),
)

ALGORITHM = (
    read("algorithm.algorithm_type", "algorithm.advantage, algorithm.loss", "ppo"),
    becomes("algorithm.repeat_times", "train.samplesPerPrompt", 1),
    *OPTIMIZER,
    becomes("algorithm.advantage_fn_args.gamma", "algorithm.gamma"),
    becomes("algorithm.advantage_fn_args.lam", "algorithm.gaeLambda"),
    read("algorithm.advantage_fn_args.kl_coef", "algorithm.distillation.coefficient", 1.0, text="of on_policy_distill"),
    lacks("algorithm.advantage_fn_args.*", "advantages have no further settings"),
    lacks("algorithm.advantage_fn", "follows from algorithm_type", *ADVANTAGES),
    lacks("algorithm.policy_loss_fn", "follows from algorithm_type", "ppo", "cispo", "gspo"),
    read("algorithm.policy_loss_fn_args.clip_range", "algorithm.clip", 0.2),
    read("algorithm.policy_loss_fn_args.clip_range_low", "algorithm.clip.low"),
    read("algorithm.policy_loss_fn_args.clip_range_high", "algorithm.clip.high"),
    read(
        "algorithm.policy_loss_fn_args.loss_agg_mode",
        "algorithm.aggregation",
        "token-mean",
        also=("algorithm.loss_agg_mode",),
    ),
    lacks("algorithm.policy_loss_fn_args.*", "losses have no further settings"),
    read("algorithm.kl_loss_fn", "algorithm.kl.estimator", "k2", text="its default is k2"),
    read("algorithm.kl_loss_fn_args.kl_coef", "algorithm.kl.coefficient", 0.001, text="its default is 0.001"),
    lacks("algorithm.kl_penalty_fn", "see algorithm.kl.where: reward", "none"),
    implied("algorithm.kl_penalty_fn_args.*", "read with kl_penalty_fn only"),
    becomes("algorithm.entropy_loss_fn_args.entropy_coef", "algorithm.entropyCoefficient", 0.0),
    implied("algorithm.entropy_loss_fn"),
    lacks("algorithm.sample_strategy", "every sample is trained once", "default", "warmup", "simple"),
    *(implied(f"algorithm.{key}") for key in ("sample_strategy_args.*", "add_strategy", "use_token_level_loss")),
)

BUFFER = (
    becomes("buffer.batch_size", "train.promptsPerStep", 1),
    read("buffer.train_batch_size", "train.miniBatches", text="samples of an optimizer step"),
    read("buffer.total_epochs", "train.epochs", 1, text="with --rows: train.steps"),
    read("buffer.total_steps", "train.steps", also=("trainer.total_steps",)),
    read(f"{TASKS}path", "data.train"),
    read(f"{TASKS}split", "data.train", "train"),
    read(f"{TASKS}format.prompt_key", "data.promptKey", "prompt"),
    read(f"{TASKS}format.response_key", "data.answerKey", "response"),
    *(
        lacks(f"{TASKS}format.{key}", "the prompt is one message of the user")
        for key in ("system_prompt_key", "reply_prefix", "chat_template")
    ),
    becomes(
        f"{TASKS}format.system_prompt",
        "data.chatTemplate.systemPrompt",
        also=("buffer.explorer_input.system_prompt",),
    ),
    *(
        lacks(f"{TASKS}format.{key}", "all rows have one workflow, and rewards by data.dataSourceKey", "")
        for key in ("workflow_key", "reward_fn_key")
    ),
    becomes(f"{TASKS}format.image_key", "data.imageKey"),
    lacks(f"{TASKS}format.video_key", "models read texts and images only"),
    becomes(f"{TASKS}rollout_args.temperature", "rollout.sampling.temperature", 1.0, also=("model.temperature",)),
    lacks(f"{TASKS}rollout_args.top_p", DISTRIBUTION, 1, 1.0),
    lacks(f"{TASKS}rollout_args.top_k", DISTRIBUTION, -1, 0),
    *(
        implied(f"{TASKS}{key}")
        for key in (
            "name",
            "storage_type",
            "rollout_args.logprobs",
            "index",
            "enable_progress_bar",
        )
    ),
    *(implied(f"{TASKS}{key}", SUBSET) for key in ("subset_name", "subset")),
    lacks(f"{TASKS}workflow_args.*", "a prompt is answered in a single turn"),
    read(f"{TASKS}default_workflow_type", ""),
    read(f"{TASKS}default_reward_fn_type", "rewards"),
    *(
        read(f"{TASKS}reward_fn_args.{key}", field, default)
        for key, field, default in (
            ("enable_overlong_penalty", "algorithm.overlong", False),
            ("penalty_factor", "algorithm.overlong.penalty", None),
            ("cache_length", "algorithm.overlong.bufferTokens", None),
        )
    ),
    implied(f"{TASKS}reward_fn_args.max_response_length", "is model.max_response_tokens"),
    lacks(f"{TASKS}reward_fn_args.*", "a reward function of your own has them in its file"),
    lacks(f"{TASKS}task_selector.*", "prompts are sampled in a shuffled order"),
    lacks(f"{TASKS}data_selector.*", "prompts are sampled in a shuffled order"),
    implied(f"{TASKS}rollout_args.max_tokens", "is model.max_response_tokens"),
    read("buffer.explorer_input.default_workflow_type", ""),
    read("buffer.explorer_input.default_reward_fn_type", "rewards"),
    read("buffer.explorer_input.eval_tasksets", "evaluation.sets"),
    lacks("buffer.explorer_input.reply_prefix", "the prompt is one message of the user"),
    implied("buffer.explorer_input.default_eval_workflow_type"),
    lacks(
        "buffer.trainer_input.experience_buffer.storage_type",
        "samples go from the rollouts to the trainer",
        "queue",
        "sql",
    ),
    *(
        implied(f"buffer.trainer_input.experience_buffer.{key}")
        for key in ("name", "path", "max_read_timeout", "capacity")
    ),
    lacks("buffer.trainer_input.experience_buffer.replay_buffer.enable", "samples are trained once"),
    implied("buffer.trainer_input.experience_buffer.*"),
    lacks("buffer.trainer_input.auxiliary_buffers.*", "a job has one task"),
    lacks("buffer.trainer_input.sft_warmup_steps", "a job has one task", 0),
    *(
        implied(f"buffer.{key}")
        for key in ("max_retry_times", "max_retry_interval", "trainer_input.sft_warmup_dataset.*")
    ),
)

EXPLORER = (
    read("cluster.node_num", "trainer.nodes", 1),
    read("cluster.gpu_per_node", "trainer.processesPerNode", 8, text="less those of the rollouts"),
    read("explorer.rollout_model.engine_num", "rollout.replicas", 1),
    read("explorer.rollout_model.tensor_parallel_size", "rollout.tensorParallel", 1),
    becomes("explorer.rollout_model.gpu_memory_utilization", "rollout.vllmArgs.gpu-memory-utilization"),
    becomes("explorer.rollout_model.enforce_eager", "rollout.vllmArgs.enforce-eager"),
    becomes("explorer.rollout_model.enable_prefix_caching", "rollout.vllmArgs.enable-prefix-caching"),
    becomes("explorer.rollout_model.enable_chunked_prefill", "rollout.vllmArgs.enable-chunked-prefill"),
    *(
        implied(f"explorer.rollout_model.{key}")
        for key in ("dtype", "seed", "engine_type", "use_v1", "max_model_len", "enable_history")
    ),
    *(
        implied(f"explorer.rollout_model.{key}")
        for key in (
            "max_prompt_tokens",
            "max_response_tokens",
            "enable_openai_api",
            "tool_call_parser",
            "reasoning_parser",
            "enable_auto_tool_choice",
            "enable_log_requests",
        )
    ),
    read("explorer.auxiliary_models", "pools", text="of on_policy_distill: the teacher"),
    read("explorer.eval_interval", "evaluation.everySteps", 100, text="if there are eval_tasksets"),
    *(
        implied(f"explorer.{key}")
        for key in (
            "runner_per_model",
            "runner_num",
            "max_timeout",
            "max_retry_times",
            "env_vars.*",
            "name",
            "eval_on_startup",
            "max_repeat_times_per_runner",
            "bench_on_latest_checkpoint",
        )
    ),
    lacks("explorer.over_rollout.ratio", "see train.overSampling", 0, 0.0),
    read("synchronizer.sync_interval", "", 1),
    read("synchronizer.sync_offset", "train.staleness", 0),
    read("synchronizer.sync_timeout", "lifecycle.stallTimeoutSeconds"),
    *(implied(f"synchronizer.{key}") for key in ("sync_method", "sync_style", "wait_for_checkpoint")),
)


def _verl() -> tuple[Row, ...]:
    """verl's keys below `trainer.trainer_config`."""
    m = f"{ACTOR}megatron."
    budgets = (
        "ppo_micro_batch_size_per_gpu",
        "use_dynamic_bsz",
        "ppo_max_token_len_per_gpu",
        "ulysses_sequence_parallel_size",
        "ppo_epochs",
        "shuffle",
    )
    return (
        read(f"{ACTOR}strategy", "", "megatron"),
        *layout_rows(m, {"sequence_parallel": True}),
        *recompute_rows(f"{m}override_transformer_config."),
        transformer_row(f"{m}override_transformer_config"),
        becomes(f"{m}param_offload", "trainer.offload.parameters"),
        becomes(f"{m}grad_offload", "trainer.offload.gradients"),
        becomes(f"{m}optimizer_offload", "trainer.offload.optimizer"),
        read(f"{m}use_dist_checkpointing", "model.megatronCheckpoint", False),
        read(f"{m}dist_checkpointing_path", "model.megatronCheckpoint"),
        becomes(f"{m}router_replay.mode", "algorithm.rolloutCorrection.routerReplay", "disabled", REPLAY),
        *megatron_rows(m),
        becomes(f"{CONFIG}algorithm.rollout_correction.bypass_mode", "algorithm.rolloutCorrection.bypass"),
        *(implied(f"{ACTOR}{key}") for key in (*budgets, "checkpoint.*", "grad_clip", "fsdp_config.*")),
        *(
            implied(f"{CONFIG}actor_rollout_ref.{key}")
            for key in (*budgets, "checkpoint.*", "hybrid_engine", "model.*", "rollout.*")
        ),
        *(
            implied(f"{CONFIG}trainer.{key}")
            for key in ("balance_batch", "max_critic_ckpt_to_keep", "resume_mode", "default_hdfs_dir")
        ),
    )


def _others() -> tuple[Row, ...]:
    """Reference and critic."""
    roles = ((f"{REF}megatron.", "the reference"), (f"{CRITIC}megatron.", "the critic"))
    return (
        *(row for prefix, who in roles for row in same_layout_rows(prefix, who)),
        *(row for prefix, _ in roles for row in megatron_rows(prefix)),
        *(
            implied(f"{prefix}{key}", "as the policy's")
            for prefix, _ in roles
            for key in ("override_transformer_config.*", "use_dist_checkpointing", "dist_checkpointing_path")
        ),
        becomes(f"{REF}megatron.param_offload", "reference.offload"),
        *(implied(f"{REF}megatron.{key}_offload") for key in ("grad", "optimizer")),
        *(
            implied(f"{REF}{key}")
            for key in (
                "log_prob_use_dynamic_bsz",
                "log_prob_max_token_len_per_gpu",
                "ulysses_sequence_parallel_size",
                "strategy",
                "fsdp_config.*",
                "log_prob_micro_batch_size_per_gpu",
            )
        ),
        becomes(f"{CRITIC}megatron.param_offload", "critic.offload.parameters"),
        becomes(f"{CRITIC}megatron.grad_offload", "critic.offload.gradients"),
        becomes(f"{CRITIC}megatron.optimizer_offload", "critic.offload.optimizer"),
        *optimizer_rows(CRITIC, "critic.optimizer", 1e-6),
        becomes(f"{CRITIC}cliprange_value", "critic.clip", 0.0, text="its default is 0: not clipped"),
        becomes(f"{CONFIG}trainer.critic_warmup", "critic.warmupSteps", 0),
        becomes(f"{CRITIC}grad_clip", "critic.optimizer.clipGrad"),
        *(
            implied(f"{CRITIC}{key}")
            for key in (
                "strategy",
                "ppo_micro_batch_size_per_gpu",
                "forward_micro_batch_size_per_gpu",
                "use_dynamic_bsz",
                "ppo_epochs",
            )
        ),
        *(
            implied(f"{CRITIC}{key}")
            for key in (
                "ppo_max_token_len_per_gpu",
                "forward_max_token_len_per_gpu",
                "ulysses_sequence_parallel_size",
                "shuffle",
            )
        ),
    )


TRAINER = (
    read("trainer.trainer_strategy", "", "megatron"),
    becomes("trainer.save_interval", "checkpoint.everySteps", 0, at_least(0)),
    read(
        "trainer.max_checkpoints_to_keep",
        "checkpoint.keepLast",
        also=(f"{CONFIG}trainer.max_actor_ckpt_to_keep",),
        text="unset: 64, the most",
    ),
    becomes("trainer.save_hf_checkpoint", "checkpoint.exportHuggingFace", convert=lambda value: value != "never"),
    implied("trainer.use_dynamic_bsz", "one token budget holds for all passes"),
    read("trainer.max_token_len_per_gpu", "train.tokensPerMicroBatch", 16384, text="x context parallel size"),
    must("trainer.ulysses_sequence_parallel_size", 1, "see trainer.parallelism.context"),
    lacks("trainer.trainer_config_path", "give the file's keys below trainer.trainer_config", ""),
    *(
        implied(f"trainer.{key}")
        for key in ("trainer_type", "enable_preview", "name", "fix_actor_microbatch_loss_scale", "save_strategy")
    ),
    *_verl(),
    *_others(),
)

ROWS = (*RUN, *MODEL, *BUFFER, *ALGORITHM, *TRAINER, *EXPLORER)
