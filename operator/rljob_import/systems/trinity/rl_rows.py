"""What becomes of the keys of Trinity-RFT's YAML in `mode: both`."""

from rljob_import.systems.trinity.aggregation import aggregation_rows
from rljob_import.systems.trinity.rows import EVERY_MODEL, OPTIMIZER, RUN, SUBSET, TRAINER
from rljob_import.table import becomes, implied, lacks, read

TASKS = "buffer.explorer_input.taskset."
SERVED = "explorer.rollout_model."
ADVANTAGES = ("grpo", "ppo", "rloo", "reinforceplusplus", "on_policy_distill")
DISTRIBUTION = "training samples from the whole distribution"

MODEL = (
    *EVERY_MODEL,
    becomes("model.critic_model_path", "critic.path"),
    read("model.max_prompt_tokens", "data.maxPromptTokens", text="unset: max_model_len - max_response_tokens"),
    read("model.max_response_tokens", "rollout.sampling.maxTokens", 1024),
    *(
        read(f"{SERVED}{key}", field, text="in place of the model's")
        for key, field in (
            ("max_prompt_tokens", "data.maxPromptTokens"),
            ("max_response_tokens", "rollout.sampling.maxTokens"),
            ("max_model_len", "data.maxPromptTokens"),
        )
    ),
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

ALGORITHM = (
    read("algorithm.algorithm_type", "algorithm.advantage, algorithm.loss", "ppo"),
    becomes("algorithm.repeat_times", "train.samplesPerPrompt", 1),
    *OPTIMIZER,
    becomes("algorithm.advantage_fn_args.gamma", "algorithm.gamma"),
    becomes("algorithm.advantage_fn_args.lam", "algorithm.gaeLambda"),
    read("algorithm.advantage_fn_args.kl_coef", "algorithm.distillation.coefficient", 1.0, text="of on_policy_distill"),
    lacks("algorithm.advantage_fn_args.*", "advantages have no further settings"),
    lacks("algorithm.advantage_fn", "follows from algorithm_type", *ADVANTAGES),
    read("algorithm.policy_loss_fn", "algorithm.loss", text="follows from algorithm_type"),
    read("algorithm.policy_loss_fn_args.clip_range", "algorithm.clip", 0.2),
    read("algorithm.policy_loss_fn_args.clip_range_low", "algorithm.clip.low"),
    read("algorithm.policy_loss_fn_args.clip_range_high", "algorithm.clip.high"),
    read("algorithm.policy_loss_fn_args.clip_ratio_c", "algorithm.clip.dual", 3.0, text="of ppo; its default is 3"),
    *aggregation_rows("algorithm.aggregation"),
    lacks("algorithm.policy_loss_fn_args.*", "losses have no further settings"),
    read("algorithm.kl_loss_fn", "algorithm.kl.estimator", "k2", text="its default is k2"),
    read("algorithm.kl_loss_fn_args.kl_coef", "algorithm.kl.coefficient", 0.001, text="its default is 0.001"),
    lacks("algorithm.kl_penalty_fn", "see algorithm.kl.where: reward", "none"),
    implied("algorithm.kl_penalty_fn_args.*", "read with kl_penalty_fn only"),
    becomes("algorithm.entropy_loss_fn_args.entropy_coef", "algorithm.entropyCoefficient", 0.0),
    implied("algorithm.entropy_loss_fn"),
    lacks("algorithm.sample_strategy", "every sample is trained once", "default", "warmup", "simple"),
    *(implied(f"algorithm.{key}") for key in ("sample_strategy_args.*", "use_token_level_loss")),
    lacks("algorithm.add_strategy", "see algorithm.dynamicSampling", ""),
    implied("algorithm.add_strategy_args.*", "read with add_strategy only"),
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
    implied(
        f"{TASKS}reward_fn_args.max_response_length",
        "is model.max_response_tokens",
        equals="rollout.sampling.maxTokens",
    ),
    lacks(f"{TASKS}reward_fn_args.*", "a reward function of your own has them in its file"),
    lacks(f"{TASKS}task_selector.*", "prompts are sampled in a shuffled order"),
    lacks(f"{TASKS}data_selector.*", "prompts are sampled in a shuffled order"),
    implied(f"{TASKS}rollout_args.max_tokens", "is model.max_response_tokens", equals="rollout.sampling.maxTokens"),
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
    *(implied(f"explorer.rollout_model.{key}") for key in ("dtype", "seed", "engine_type", "use_v1", "enable_history")),
    *(
        implied(f"explorer.rollout_model.{key}")
        for key in (
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

ROWS = (*RUN, *MODEL, *BUFFER, *ALGORITHM, *TRAINER, *EXPLORER)
