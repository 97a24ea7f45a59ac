"""RLinf's keys, and what each of them becomes. What several of them make together is in rlinf.py."""

from typing import Any

from kubectl_rljob.importer.megatron import (
    layout_rows,
    recompute_rows,
    transformer_row,
)
from kubectl_rljob.importer.table import Row, becomes, implied, lacks, must, read, verbatim
from kubectl_rljob.importer.values import at_least, choice, items

DECAYS = choice(constant="constant", linear="linear", cosine="cosine")
SAYS = "config.json or the trainer says it"
SHAPE = (
    "add_bias_linear",
    "activation",
    "normalization",
    "position_embedding_type",
    "moe_router_topk",
    "init_method_std",
    "init_method",
)
RUN = (
    "seq_length",
    "encoder_seq_length",
    "max_position_embeddings",
    "variable_seq_lengths",
    "use_cpu_initialization",
    "batch_p2p_comm",
)
QUIET_OPTIMIZER = (
    "bf16",
    "fp16",
    "loss_scale",
    "initial_loss_scale",
    "optimizer_enable_pin",
    "overlap_param_gather_with_optimizer_step",
    "loss_scale_window",
    "use_precision_aware_optimizer",
)
AGENT = "an agent is a file of your own: spec.rollout.agent"
DISTRIBUTION = "training samples from the whole distribution"


def one_column(value: Any) -> Any:
    """Of a list of columns the only one."""
    if len(items(value)) != 1:
        raise ValueError("is not one column; store a row's images as a list in one")
    return items(value)[0]


def optimizer_rows(prefix: str, target: str, rate: float) -> tuple[Row, ...]:
    o, s = f"{prefix}optim.", f"{prefix}lr_sched."
    return (
        becomes(f"{o}lr", f"{target}.learningRate", rate),
        becomes(f"{o}adam_beta1", f"{target}.beta1", 0.9),
        becomes(f"{o}adam_beta2", f"{target}.beta2", 0.95),
        becomes(f"{o}adam_eps", f"{target}.epsilon", 1e-8),
        becomes(f"{o}weight_decay", f"{target}.weightDecay", 0.0),
        becomes(f"{o}clip_grad", f"{target}.clipGrad", 1.0),
        lacks(f"{o}optimizer", "the optimizer is AdamW", "adam", "adamw"),
        must(f"{o}use_distributed_optimizer", True, "the optimizer is always distributed"),
        read(f"{o}min_lr", f"{target}.minLearningRate"),
        becomes(f"{s}lr_decay_style", f"{target}.decay", "constant", DECAYS),
        read(f"{s}min_lr", f"{target}.minLearningRate", 0.0),
        read(f"{s}lr_warmup_iters", f"{target}.warmupSteps", 0),
        read(f"{s}lr_warmup_fraction", f"{target}.warmupSteps", 0.0, text="needs --rows while epochs are given"),
        lacks(f"{s}lr_warmup_init", "the warm-up begins at 0", 0, 0.0),
        implied(f"{s}lr_decay_iters", "the rate falls until the last step"),
        implied(f"{s}max_lr", f"is {o}lr"),
        *(implied(f"{o}{key}") for key in QUIET_OPTIMIZER),
        lacks(f"{o}optimizer_cpu_offload", "see trainer.offload.optimizer"),
        *(implied(f"{s}{key}") for key in ("weight_decay_incr_style", "start_weight_decay", "end_weight_decay")),
    )


RUNNER = (
    read("runner.task_type", "task", "reasoning"),
    read("cluster.num_nodes", "trainer.nodes", 1),
    read("cluster.component_placement.*", "rollout.placement", text="all, or ranges of GPUs: separate"),
    read("runner.max_steps", "train.steps"),
    read("runner.max_epochs", "train.epochs", 1, text="with --rows: train.steps"),
    becomes("runner.save_interval", "checkpoint.everySteps", 50, at_least(0)),
    becomes("runner.val_check_interval", "evaluation.everySteps", 0, at_least(0)),
    read("runner.resume_dir", "checkpoint.resume", text="auto; a directory of RLinf's is not read"),
    read("runner.output_dir", "checkpoint.path", "../results"),
    read("runner.experiment_name", "metadata.name", "rlinf"),
    read("runner.logger.logger_backends", "env", ["tensorboard"], text="wandb: WANDB_PROJECT"),
    read("runner.logger.project_name", "env", "rlinf"),
    *(implied(f"runner.logger.{key}") for key in ("log_path", "experiment_name")),
    read("runner.seq_length", "rollout.sampling.maxTokens", 4096, text="- data.max_prompt_length"),
    read("runner.enable_dynamic_batch_size", "train.tokensPerMicroBatch", False),
    read("runner.max_tokens_per_mbs", "train.tokensPerMicroBatch"),
    *(implied(f"runner.{key}") for key in ("log_interval", "ckpt_path", "enable_profiler")),
    lacks("cluster.auto_scheduler", "a job's GPUs are the same throughout"),
    *(
        implied(f"cluster.{key}")
        for key in ("use_pre_process_policy", "use_wait_before_last_iter_policy", "recreate_nccl_groups")
    ),
    *(implied(key) for key in ("hydra.*", "defaults")),
    *(lacks(f"{section}.*", AGENT) for section in ("agentloop", "tools", "agentlightning")),
    lacks("rollout_fixed_worker.*", AGENT),
    lacks("rollout_judge.*", "a judge is a pool: spec.pools and spec.rewards[].vllm"),
    lacks("eval", "see evaluation.only"),
)

DATA = (
    becomes("data.rollout_batch_size", "train.promptsPerStep", 512),
    becomes("data.max_prompt_length", "data.maxPromptTokens", 1024),
    becomes("data.prompt_key", "data.promptKey", "prompt"),
    becomes("data.answer_key", "data.answerKey"),
    becomes("data.apply_chat_template", "data.chatTemplate.texts", False, also=("data.use_chat_template",)),
    becomes("data.shuffle", "data.shuffle", True),
    becomes("data.seed", "data.seed"),
    read("data.train_data_paths", "data.train"),
    read("data.val_data_paths", "data.validation"),
    lacks("data.type", "rows are prompts with an answer, and images in data.imageKey", "math", "vlm"),
    becomes("data.image_keys", "data.imageKey", convert=one_column),
    becomes("data.system_prompt", "data.chatTemplate.systemPrompt"),
    verbatim("data.apply_chat_template_kwargs", "data.chatTemplate.arguments", frozenset(), "as they are"),
    lacks("data.choice_key", "put the choices into the prompt"),
    lacks("data.solution_key", "a reward function reads it: `extra_info` or `row`"),
    implied("data.lazy_loading"),
    *(
        lacks(f"data.{key}", AGENT)
        for key in ("data_size", "is_markdown", "norm_column", "unique_columns", "is_hybrid")
    ),
    *(
        implied(f"data.{key}")
        for key in (
            "dataset_name",
            "filter_prompt_by_length",
            "num_workers",
            "val_rollout_batch_size",
            "validation_shuffle",
        )
    ),
)

ALGORITHM = (
    becomes("algorithm.group_size", "train.samplesPerPrompt", 1),
    read("algorithm.n_minibatches", "train.miniBatches", 1),
    read("algorithm.training_batch_size_per_gpu", "train.tokensPerMicroBatch", 1, text="x runner.seq_length"),
    read("algorithm.adv_type", "algorithm.advantage", "grpo"),
    read("algorithm.normalize_advantages", "algorithm.group.divideByStd", True),
    read("algorithm.gamma", "algorithm.gamma", 1.0),
    read("algorithm.gae_lambda", "algorithm.gaeLambda", 1.0),
    read("algorithm.ratio_clip_eps", "algorithm.clip.low, algorithm.clip.high", 0.2),
    read("algorithm.clip_ratio_low", "algorithm.clip.low"),
    read("algorithm.clip_ratio_high", "algorithm.clip.high"),
    becomes("algorithm.clip_ratio_c", "algorithm.clip.dual"),
    read("algorithm.kl_beta", "algorithm.kl.coefficient", 0.0),
    read(
        "algorithm.reinpp_kl_beta",
        "algorithm.kl.coefficient, algorithm.kl.where",
        0.0,
        text="with adv_type reinpp: in the reward",
    ),
    read("algorithm.use_reinpp_baseline", "algorithm.advantage", False, text="reinforce++-baseline"),
    read("algorithm.kl_penalty_type", "algorithm.kl.estimator", "low_var_kl"),
    becomes("algorithm.entropy_bonus", "algorithm.entropyCoefficient", 0.0),
    read("algorithm.loss_agg_func", "algorithm.aggregation", "token-mean"),
    lacks("algorithm.loss_type", "the loss is PPO's", "actor", "actor_critic", "ppo"),
    read("algorithm.recompute_logprobs", "algorithm.rolloutCorrection.bypass", True),
    read("algorithm.importance_sampling_fix", "algorithm.rolloutCorrection.importanceSampling", False),
    read("algorithm.importance_sampling_clip", "algorithm.rolloutCorrection.cap", 2.0),
    lacks("algorithm.early_stop_imp_ratio", "no optimizer step is left out for its ratios; see algorithm.clip"),
    lacks("algorithm.use_valid_token_scale", "see algorithm.aggregation"),
    read("algorithm.max_num_gen_batches", "algorithm.dynamicSampling.maxRounds", 1),
    becomes("algorithm.value_cliprange", "critic.clip"),
    becomes("algorithm.critic_warmup_steps", "critic.warmupSteps"),
    *(
        implied(f"algorithm.{key}")
        for key in ("rollout_batch_size_per_gpu", "logprob_forward_micro_batch_size", "val_rollout_batch_size_per_gpu")
    ),
    *(
        implied(f"algorithm.{key}")
        for key in ("shuffle_rollout", "calculate_entropy", "max_inflight_gen_batches", "huber_delta")
    ),
    becomes("algorithm.sampling_params.temperature", "rollout.sampling.temperature", 1.0),
    read("algorithm.sampling_params.max_new_tokens", "rollout.sampling.maxTokens"),
    must(
        "algorithm.sampling_params.do_sample",
        True,
        "training always samples",
        also=("algorithm.sampling_params.use_greedy",),
    ),
    lacks("algorithm.sampling_params.top_k", DISTRIBUTION, 1000000, -1, 0),
    lacks("algorithm.sampling_params.top_p", DISTRIBUTION, 1, 1.0),
    lacks("algorithm.sampling_params.repetition_penalty", DISTRIBUTION, 1, 1.0),
    lacks("algorithm.sampling_params.min_new_tokens", DISTRIBUTION, 0, 1),
    becomes("algorithm.sampling_params.stop", "rollout.sampling.stop", convert=items),
    lacks("algorithm.sampling_params.stop_token_ids", "name texts in rollout.sampling.stop", []),
    lacks("algorithm.loss_scales", "see algorithm.aggregation", []),
    lacks("algorithm.advantage_mode", "advantages are of whole responses"),
    lacks("algorithm.clip_log_ratio_min", "see algorithm.clip"),
    lacks("algorithm.clip_log_ratio_max", "see algorithm.clip"),
    lacks(
        "algorithm.down_sampling.do_down_sampling", "all samples of a prompt are trained; see algorithm.dynamicSampling"
    ),
    implied("algorithm.down_sampling.*"),
)

ROLLOUT = (
    read("rollout.rollout_backend", "", "vllm", text="vLLM generates"),
    read("rollout.model.model_path", "model.path", also=("rollout.model_dir",)),
    read("rollout.tensor_parallel_size", "rollout.tensorParallel", 1),
    lacks("rollout.pipeline_parallel_size", "a server is cut by tensor parallelism only", 1),
    becomes("rollout.gpu_memory_utilization", "rollout.vllmArgs.gpu-memory-utilization"),
    becomes("rollout.enforce_eager", "rollout.vllmArgs.enforce-eager"),
    becomes("rollout.max_running_requests", "rollout.vllmArgs.max-num-seqs"),
    becomes("rollout.vllm.enable_chunked_prefill", "rollout.vllmArgs.enable-chunked-prefill"),
    becomes("rollout.vllm.enable_prefix_caching", "rollout.vllmArgs.enable-prefix-caching"),
    becomes("rollout.vllm.max_num_batched_tokens", "rollout.vllmArgs.max-num-batched-tokens"),
    *(
        implied(f"rollout.vllm.{key}")
        for key in ("attention_backend", "enable_flash_infer_sampler", "torch_profiler_dir")
    ),
    implied("rollout.sglang.*", "of a server other than vLLM"),
    *(
        implied(f"rollout.{key}")
        for key in ("group_name", "distributed_executor_backend", "disable_log_stats", "detokenize", "padding", "eos")
    ),
    *(
        implied(f"rollout.{key}")
        for key in ("attention_backend", "return_logprobs", "validate_weight", "validate_save_dir", "print_outputs")
    ),
    *(
        implied(f"rollout.{key}")
        for key in (
            "cuda_graph_max_bs",
            "use_torch_compile",
            "torch_compile_max_bs",
            "sglang_decode_log_interval",
            "model_arch",
        )
    ),
    implied("rollout.model.model_type"),
    read("rollout.model.precision", "", text="servers have the policy's type: model.dtype"),
    *(implied(f"rollout.{key}") for key in ("seed", "validate_weight_first_sync", "use_fixed_worker", "is_eval")),
    lacks("rollout.custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    *(
        implied(f"rollout.{key}")
        for key in ("load_format", "weight_reload", "recompute_logprobs", "unload_weight", "backend")
    ),
)

ACTOR = (
    must("actor.training_backend", "megatron", "the trainer is Megatron: choose trainer.parallelism"),
    read(
        "actor.model.precision",
        "model.dtype",
        "bf16",
        text="fp16: bfloat16; fp32 with mixed precision: the type of the passes",
    ),
    read("actor.fsdp_config.mixed_precision.param_dtype", "model.dtype"),
    read("actor.fsdp_config.amp_autocast.enabled", "model.dtype", False),
    read("actor.fsdp_config.amp_autocast.precision", "model.dtype"),
    read("actor.model.model_path", "model.path"),
    read("actor.megatron.ckpt_convertor.hf_model_path", "model.path"),
    read("actor.tokenizer.tokenizer_model", "model.path"),
    becomes("actor.tokenizer.trust_remote_code", "model.trustRemoteCode"),
    read("actor.model.megatron_checkpoint", "model.megatronCheckpoint"),
    must(
        "actor.megatron.use_hf_ckpt",
        True,
        "weights are read from the Hugging Face directory, or model.megatronCheckpoint",
    ),
    *(
        implied(f"actor.megatron.{key}", "Hugging Face weights are read directly")
        for key in ("mbridge", "ckpt_convertor.*", "use_dist_ckpt", "ckpt_format")
    ),
    *layout_rows("actor.model.", {"sequence_parallel": False}),
    *recompute_rows("actor.model."),
    becomes("actor.optim.overlap_grad_reduce", "trainer.overlap.gradReduce"),
    becomes("actor.optim.overlap_param_gather", "trainer.overlap.paramGather"),
    becomes("actor.offload_optimizer", "trainer.offload.optimizer", False),
    becomes("actor.offload_weight", "trainer.offload.parameters", False),
    becomes("actor.offload_grad", "trainer.offload.gradients", False),
    *(implied(f"actor.model.{key}", SAYS) for key in (*SHAPE, *RUN)),
    *(implied(f"actor.model.{key}") for key in ("model_type", "spec_name", "openpi.*", "is_lora", "sharding_strategy")),
    transformer_row("actor.model"),
    *optimizer_rows("actor.", "train.optimizer", 1e-6),
    read(
        "actor.megatron.distributed_timeout_minutes", "lifecycle.stallTimeoutSeconds", text="if longer than the default"
    ),
    *(
        implied(f"actor.megatron.{key}")
        for key in (
            "ddp_bucket_size",
            "distributed_backend",
            "tp_comm_bootstrap_backend",
            "tp_comm_overlap_cfg",
            "use_profiler",
        )
    ),
    *(
        implied(f"actor.megatron.{key}")
        for key in (
            "profiler.*",
            "transformer_impl",
            "swiglu",
            "untie_embeddings_and_output_weights",
            "te_precision_config_file",
            "accumulate_allreduce_grads_in_fp32",
        )
    ),
    *(implied(f"actor.tokenizer.{key}") for key in ("use_fast", "padding_side")),
    *(
        implied(f"actor.{key}")
        for key in (
            "group_name",
            "mcore_gpt",
            "spec_name",
            "enable_dp_load_balance",
            "calculate_flops",
            "seed",
            "fsdp_config.*",
        )
    ),
    *(
        implied(f"actor.{key}")
        for key in ("checkpoint_save_path", "enable_offload", "micro_batch_size", "global_batch_size")
    ),
    read("reward.reward_type", "rewards", "math"),
    read("reward.reward_scale", "rewards[].weight", 1.0),
    *(lacks(f"reward.{key}", "clip the score in a reward function") for key in ("reward_min_val", "reward_max_val")),
    lacks("reward.reward_weights.*", "parts of a reward are entries of spec.rewards, each with its weight"),
    implied("reward.use_prompt", "a reward function may take the prompt"),
    lacks("actor.pack_traj", "the turns of an agent are one trajectory"),
    lacks("reward.use_reward_model", "see spec.rewards[].vllm and spec.rewards[].model"),
    *(implied(f"reward.{key}") for key in ("group_name", "tokenizer.*", "custom_fn.*")),
    implied("critic.use_critic_model", "follows from algorithm.adv_type"),
    *optimizer_rows("critic.", "critic.optimizer", 1e-5),
    *(
        implied(f"critic.{key}", "the critic is on the trainer's ranks, in their layout")
        for key in ("model.*", "megatron.*", "group_name", "training_backend")
    ),
    *(
        implied(f"critic.{key}")
        for key in (
            "tokenizer.*",
            "mcore_gpt",
            "spec_name",
            "seed",
            "offload_optimizer",
            "offload_weight",
            "offload_grad",
        )
    ),
    *(implied(f"critic.optim.overlap_{key}", "as the policy's") for key in ("grad_reduce", "param_gather")),
    *(implied(f"critic.{key}") for key in ("enable_dp_load_balance", "calculate_flops", "fsdp_config.*")),
    *(implied(key, "log-probabilities are the trainer's") for key in ("inference.*",)),
)

ROWS = (*RUNNER, *DATA, *ALGORITHM, *ROLLOUT, *ACTOR)
