"""What becomes of verl's keys of the critic."""

from rljob_import.shared.megatron import same_layout_rows
from rljob_import.systems.verl.rows import ONE_BUDGET, QUIET, megatron_rows, of_group, optimizer_rows
from rljob_import.table import becomes, implied, lacks, read

FSDP = ("fsdp", "fsdp_config", "model.fsdp_config")
"""Where the critic's settings of FSDP are, by version."""
CRITIC_BUDGETS = (
    *("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size", "use_dynamic_bsz"),
    *("forward_max_token_len_per_gpu", "forward_micro_batch_size_per_gpu", "forward_micro_batch_size"),
)
CRITIC_QUIET = (
    *(
        "strategy",
        "enable",
        "shuffle",
        "data_loader_seed",
        "loss_scale_factor",
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
)
CRITIC = (
    read("critic.model.path", "critic.path"),
    *optimizer_rows("critic.", "critic.optimizer", 1e-5),
    read("critic.grad_clip", "critic.optimizer.clipGrad", text="of FSDP; Megatron's is optim.clip_grad"),
    becomes("critic.cliprange_value", "critic.clip", 0.5),
    *same_layout_rows("critic.megatron.", "the critic"),
    becomes(
        "critic.megatron.param_offload",
        "critic.offload.parameters",
        also=tuple(f"critic.{part}.param_offload" for part in FSDP),
    ),
    becomes("critic.megatron.grad_offload", "critic.offload.gradients"),
    becomes(
        "critic.megatron.optimizer_offload",
        "critic.offload.optimizer",
        also=tuple(f"critic.{part}.optimizer_offload" for part in FSDP),
    ),
    read("critic.ulysses_sequence_parallel_size", "", text="the critic runs in the trainer's layout"),
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
    *(
        lacks(f"critic.{key}", "the critic trains all its weights", 0)
        for key in ("model.lora_rank", "model.lora.rank", "model_config.lora_rank", "model_config.lora.rank")
    ),
    *(
        lacks(f"critic.{key}.override_config.*", "the model is as its config.json says")
        for key in ("model", "model_config")
    ),
    *(
        lacks(f"critic.{key}.dtype", "the critic has the policy's type: model.dtype", "bfloat16", "bf16")
        for key in ("fsdp", "fsdp_config")
    ),
    read("critic.loss_agg_mode", "", text="the critic's loss is the mean over tokens"),
    read("critic.ppo_epochs", "", text="the critic learns in the policy's passes and mini-batches"),
    read("critic.ppo_mini_batch_size", "", text="the critic learns in the policy's passes and mini-batches"),
    *(implied(f"critic.{key}", ONE_BUDGET) for key in CRITIC_BUDGETS),
    *(implied(f"critic.{key}") for key in (*QUIET, *CRITIC_QUIET)),
    of_group("critic.rollout_n"),
    becomes("trainer.critic_warmup", "critic.warmupSteps", 0),
)
