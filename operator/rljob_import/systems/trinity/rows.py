"""What becomes of the keys of Trinity-RFT's YAML."""

from typing import Any

from rljob_import.shared.fsdp import checkpointing_row, ulysses_row
from rljob_import.shared.megatron import layout_rows, recompute_rows, same_layout_rows, transformer_row
from rljob_import.shared.values import DECAYS, REPLAY, at_least, resume
from rljob_import.systems.verl.rows import megatron_rows, optimizer_rows
from rljob_import.table import Row, becomes, implied, lacks, read

CONFIG = "trainer.trainer_config."
ACTOR, REF, CRITIC = (f"{CONFIG}{part}." for part in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"))
ULYSSES = "trainer.ulysses_sequence_parallel_size"
CHECKPOINTING = f"{CONFIG}actor_rollout_ref.model.enable_gradient_checkpointing"
EPOCHS = f"{ACTOR}ppo_epochs"
SUBSET = "put the files of this subset in place"


def _is_written(value: Any) -> bool:
    return bool(value != "never")


RUN = (
    read("mode", "task", "both"),
    read("project", "checkpoint.path", "Trinity-RFT"),
    read("name", "metadata.name", "rft"),
    read("checkpoint_root_dir", "checkpoint.path"),
    becomes("continue_from_checkpoint", "checkpoint.resume", convert=resume),
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


def _verl() -> tuple[Row, ...]:
    """verl's keys below `trainer.trainer_config`."""
    m = f"{ACTOR}megatron."
    budgets = (
        "ppo_micro_batch_size_per_gpu",
        "use_dynamic_bsz",
        "ppo_max_token_len_per_gpu",
        "shuffle",
    )
    return (
        becomes(EPOCHS, "train.epochsPerStep", 1),
        read(f"{ACTOR}strategy", "", "fsdp"),
        *layout_rows(m, {"sequence_parallel": True}),
        *recompute_rows(f"{m}override_transformer_config."),
        transformer_row(f"{m}override_transformer_config"),
        becomes(f"{m}param_offload", "trainer.offload.parameters", also=(f"{ACTOR}fsdp_config.param_offload",)),
        becomes(f"{m}grad_offload", "trainer.offload.gradients"),
        becomes(f"{m}optimizer_offload", "trainer.offload.optimizer", also=(f"{ACTOR}fsdp_config.optimizer_offload",)),
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
        becomes(f"{REF}megatron.param_offload", "reference.offload", also=(f"{REF}fsdp_config.param_offload",)),
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
            )
        ),
        implied(
            f"{CRITIC}ppo_epochs",
            "the critic learns in the policy's passes and mini-batches",
            equals="train.epochsPerStep",
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
    read("trainer.trainer_strategy", "", "fsdp", text="of other strategies than megatron the layout is not taken over"),
    becomes("trainer.save_interval", "checkpoint.everySteps", 0, at_least(0)),
    read(
        "trainer.max_checkpoints_to_keep",
        "checkpoint.keepLast",
        also=(f"{CONFIG}trainer.max_actor_ckpt_to_keep",),
        text="unset: 64, the most",
    ),
    becomes("trainer.save_hf_checkpoint", "checkpoint.exportHuggingFace", convert=_is_written),
    implied("trainer.use_dynamic_bsz", "one token budget holds for all passes"),
    read("trainer.max_token_len_per_gpu", "train.tokensPerMicroBatch", 16384, text="x context parallel size"),
    ulysses_row(
        ULYSSES,
        f"{ACTOR}ulysses_sequence_parallel_size",
        f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size",
        f"{CONFIG}actor_rollout_ref.ulysses_sequence_parallel_size",
    ),
    checkpointing_row(CHECKPOINTING, True),
    lacks("trainer.trainer_config_path", "give the file's keys below trainer.trainer_config", ""),
    *(
        implied(f"trainer.{key}")
        for key in ("trainer_type", "enable_preview", "name", "fix_actor_microbatch_loss_scale", "save_strategy")
    ),
    *_verl(),
    *_others(),
)
