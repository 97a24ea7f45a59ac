"""What becomes of verl's keys of the other roles: reference, rollouts, rewards, trainer; the critic's are in `critic_rows`."""

from rljob_import.shared.bases import BASES
from rljob_import.shared.megatron import same_layout_rows
from rljob_import.shared.values import at_least, choice
from rljob_import.systems.verl.critic_rows import CRITIC
from rljob_import.systems.verl.distillation import DISTILLATION
from rljob_import.systems.verl.rows import (
    ACTOR_ROWS,
    AGENT,
    ALGORITHM,
    AR,
    DATA,
    GUIDE,
    ONE_BUDGET,
    POLICY,
    QUIET,
    REF,
    ROLLOUT,
    SPEED,
    megatron_rows,
    of_group,
    rollouts_log_probs,
)
from rljob_import.table import becomes, implied, lacks, must, read

REF_QUIET = (
    *(
        "fsdp_config.*",
        "veomni.*",
        "router_replay.*",
        "pad_to_length",
        "load_weight",
    ),
    "engine.*",
)
ROLLOUT_QUIET = (
    *(
        "mode",
        "seed",
        "load_format",
        "disable_log_stats",
        "skip_tokenizer_init",
        "layered_summon",
    ),
    *("multi_stage_wake_up", "full_determinism", "cudagraph_capture_sizes", "limit_images"),
    *("disaggregation.*", "mtp.*", "qat.*", "trace.*", "profiler.*", "prometheus.*"),
    *("skip_rollout", "skip_dump_dir", "layer_name_map.*", "moe_load_balance_metrics_interval", "model_engine"),
)
REWARD_MODEL_QUIET = (
    *("enable_resource_pool", "n_gpus_per_node", "nnodes", "strategy", "num_workers", "use_reward_loop", "load_weight"),
    *("model.*", "rollout.*", "megatron.*", "profiler.*", "reward_loop_source", "reward_loop_module_path"),
    *("reward_loop_class_name", "launch_reward_fn_async", "micro_batch_size", "micro_batch_size_per_gpu", "max_length"),
    *("use_dynamic_bsz", "forward_max_token_len_per_gpu", "nccl_timeout", "sandbox_fusion.*"),
)

REFERENCE = (
    implied(f"{REF}strategy"),
    *same_layout_rows(f"{REF}megatron.", "the reference"),
    becomes(
        f"{REF}megatron.param_offload",
        "reference.offload",
        also=(f"{REF}fsdp_config.param_offload",),
        text="while there is a reference",
    ),
    read(f"{REF}ulysses_sequence_parallel_size", "", text="the reference runs in the trainer's layout"),
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
    of_group(f"{REF}rollout_n"),
    *(implied(f"{REF}{key}") for key in (*QUIET, *REF_QUIET)),
)
"""`becomes` of a reference is dropped where none is held: see `algorithm.reference`."""
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
    read(f"{ROLLOUT}expert_parallel_size", "rollout.expertParallel", 1),
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
    lacks(f"{ROLLOUT}dtype", "servers have the policy's type: model.dtype", "bfloat16", "auto"),
    lacks(f"{ROLLOUT}logprobs_mode", "log-probabilities are those that tokens were drawn with", "processed_logprobs"),
    lacks(f"{ROLLOUT}quantization_config_file", "rollout.vllmArgs.quantization names one of vLLM's own ways", ""),
    lacks(f"{ROLLOUT}qat.enable", "weights are not quantised"),
    lacks(
        f"{ROLLOUT}mtp.enable",
        "set rollout.speculation.method: mtp where it is wanted: on GPUs it is proven for GLM-4.5 only",
    ),
    read(f"{ROLLOUT}over_sample_rate", "train.overSampling", 0, text="1 / (1 - it)"),
    implied(f"{ROLLOUT}max_model_len", "is maxPromptTokens + maxTokens"),
    implied(f"{ROLLOUT}prompt_length", "is data.maxPromptTokens", equals="data.maxPromptTokens"),
    implied(f"{ROLLOUT}response_length", "is maxTokens", equals="rollout.sampling.maxTokens"),
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


OVERLONG = "overlong_buffer_cfg"
OWN_MANAGER = "rewards are functions of one response: mount a file with one, and name it in spec.rewards[].python"
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
    *(implied(f"{key}.reward_kwargs.{OVERLONG}.log") for key in ("reward", "reward_model")),
    *(
        implied(f"{key}.reward_kwargs.max_resp_len", "is maxTokens", equals="rollout.sampling.maxTokens")
        for key in ("reward", "reward_model")
    ),
    *(
        lacks(f"{key}.reward_kwargs.*", "a reward function gets no further arguments")
        for key in ("reward", "reward_model")
    ),
    implied("reward_model.overlong_buffer.log"),
    read("reward.reward_model.enable", "rewards[].vllm", False, also=("reward_model.enable",)),
    read("reward.reward_model.model_path", "pools, rewards[].vllm", also=("reward_model.model.path",)),
    read("reward.reward_model.rollout.tensor_model_parallel_size", "pools", 2),
    read("reward.reward_model.enable_resource_pool", "pools", False),
    *(read(f"reward.reward_model.{key}", "pools", default) for key, default in (("n_gpus_per_node", 8), ("nnodes", 0))),
    implied("reward.reward_model.*"),
    lacks(
        "reward.sandbox_fusion.url",
        "code is judged by an http reward of your own",
        also=("reward_model.sandbox_fusion.url", "sandbox_fusion.url"),
    ),
    *(implied(f"{key}.*", "read with a sandbox only") for key in ("reward.sandbox_fusion", "sandbox_fusion")),
    *(implied(f"reward.{key}") for key in ("num_workers", "reward_manager.source")),
    *(implied(f"reward_manager.{key}") for key in ("source", "name")),
    lacks("reward.reward_manager.module.path", OWN_MANAGER, also=("reward_manager.module.path",)),
    *(implied(f"{key}.module.*", "read with a path only") for key in ("reward.reward_manager", "reward_manager")),
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
        text="wandb: WANDB_PROJECT; mlflow: MLFLOW_EXPERIMENT_NAME; swanlab: SWANLAB_PROJ_NAME; console and tensorboard are always written",
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
    rollouts_log_probs("async_training.use_rollout_log_probs"),
    implied("async_training.*"),
    lacks("rollout.*", "rollouts follow the trainer's steps"),
    *DISTILLATION,
    must("actor@actor_rollout_ref.actor", "megatron_actor", "the trainer is Megatron: choose trainer.parallelism"),
    must("model", "hf_model", "the trainer is Megatron: choose trainer.parallelism"),
    read("model_engine", "", text="of engines other than megatron the layout is not taken over"),
    *(implied(f"{key}.*") for key in ("transfer_queue", "global_profiler", "skip", "ray_kwargs", "hydra", "ray_init")),
    read("export.*", "env", text="of a script: NCCL_, VLLM_, TORCH_ and WANDB_ variables"),
    *(implied(key, "says which engine's settings hold") for key in BASES),
)

PPO_ROWS = (*POLICY, *DATA, *REWARD, *ALGORITHM, *ACTOR_ROWS, *GUIDE, *CRITIC, *REFERENCE, *ROLLOUT_ROWS, *TRAINER)
