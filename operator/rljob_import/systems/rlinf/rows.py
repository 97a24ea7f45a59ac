"""RLinf's keys, and what each of them becomes. What several of them make together is in `reasoning.py`."""

from typing import Any

from rljob_import.shared.fsdp import checkpointing_row
from rljob_import.shared.megatron import (
    layout_rows,
    recompute_rows,
    transformer_row,
)
from rljob_import.shared.values import at_least, items
from rljob_import.table import Row, becomes, implied, lacks, must, read, verbatim

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
        becomes(f"{o}weight_decay", f"{target}.weightDecay", 0.01, text="its default is 0.01"),
        becomes(f"{o}clip_grad", f"{target}.clipGrad", 1.0),
        lacks(f"{o}optimizer", "the optimizer is AdamW", "adam", "adamw"),
        must(f"{o}use_distributed_optimizer", True, "the optimizer is always distributed"),
        read(f"{o}min_lr", f"{target}.minLearningRate"),
        read(f"{s}lr_decay_style", f"{target}.decay", "constant"),
        read(f"{o}lr_scheduler", f"{target}.decay", "constant", text="of FSDP"),
        read(f"{o}min_lr_rate", f"{target}.minLearningRate", text="of FSDP, x lr"),
        read(f"{o}total_training_steps", "", text="of FSDP: the rate falls until the last step"),
        lacks(f"{o}num_cycles", "a cosine falls once, over half a cycle", 0.5),
        read(f"{s}min_lr", f"{target}.minLearningRate", 0.0),
        read(f"{s}lr_warmup_iters", f"{target}.warmupSteps", 0),
        read(f"{s}lr_warmup_fraction", f"{target}.warmupSteps", 0.0, text="needs --rows while epochs are given"),
        read(
            f"{o}lr_warmup_steps",
            f"{target}.warmupSteps",
            -1,
            text="of FSDP",
        ),
        read(f"{o}lr_warmup_steps_ratio", f"{target}.warmupSteps", 0.0, text="of FSDP, x total_training_steps"),
        lacks(f"{s}lr_warmup_init", "the warm-up begins at 0", 0, 0.0),
        read(f"{s}lr_decay_iters", "", text="the rate falls until the last step"),
        implied(f"{s}max_lr", f"is {o}lr", equals=f"{target}.learningRate"),
        *(implied(f"{o}{key}") for key in QUIET_OPTIMIZER),
        lacks(f"{o}optimizer_cpu_offload", "see trainer.offload.update"),
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

OFFLOAD = "actor.enable_offload"
ACTOR = (
    read("actor.training_backend", "", "megatron", text="of other backends the layout is not taken over"),
    checkpointing_row("actor.fsdp_config.gradient_checkpointing", False),
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
    read(OFFLOAD, "trainer.offload", False, text="of FSDP: parameters, gradients and optimizer"),
    becomes("actor.offload_grad", "trainer.offload.gradients", False),
    *(implied(f"actor.model.{key}", SAYS) for key in (*SHAPE, *RUN)),
    *(implied(f"actor.model.{key}") for key in ("model_type", "spec_name", "openpi.*", "is_lora", "sharding_strategy")),
    transformer_row("actor.model"),
    *optimizer_rows("actor.", "train.optimizer", 1e-6),
    read("actor.lr_sched_sync_with_optim", "", True, text="of FSDP; false: a warm-up is in training steps"),
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
    *(implied(f"actor.{key}") for key in ("checkpoint_save_path", "micro_batch_size", "global_batch_size")),
    read("reward.reward_type", "rewards", "math"),
    read("reward.reward_scale", "rewards[].weight", 1.0),
    *(lacks(f"reward.{key}", "clip the score in a reward function") for key in ("reward_min_val", "reward_max_val")),
    lacks("reward.reward_weights.*", "parts of a reward are entries of spec.rewards, each with its weight"),
    implied("reward.use_prompt", "a reward function may take the prompt"),
    lacks("actor.pack_traj", "the turns of an agent are one trajectory"),
    lacks("reward.use_reward_model", "see spec.rewards[].vllm and spec.rewards[].model"),
    *(implied(f"reward.{key}") for key in ("group_name", "tokenizer.*")),
    lacks("reward.custom_fn.*", "mount a file with your function, and name it in spec.rewards[].python"),
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
