"""What becomes of the keys of ROLL's YAML: RLVR, SFT and DPO pipelines."""

from rljob_import.shared.fsdp import checkpointing_row, ulysses_row
from rljob_import.shared.megatron import layout_rows, recompute_rows, same_layout_rows, transformer_row
from rljob_import.shared.values import IMAGES, choice, resume
from rljob_import.table import Row, becomes, implied, lacks, must, read

DTYPES = choice(bf16="bfloat16", fp32="float32", float32="float32", bfloat16="bfloat16")
DECAYS = choice(constant="constant", constant_with_warmup="constant", linear="linear", cosine="cosine")
REPLAY = choice(disable="none", R2="trainer", R3="rollout")
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

COMMON = (
    read("exp_name", "metadata.name"),
    read("pretrain", "model.path"),
    read("checkpoint_config.output_dir", "checkpoint.path"),
    lacks("checkpoint_config.type", "checkpoints are on the volume", "file_system"),
    read("output_dir", "checkpoint.path", "./output"),
    becomes("seed", "data.seed", 42),
    becomes("save_steps", "checkpoint.everySteps", 50),
    read("eval_steps", "evaluation.everySteps", 10, also=("validation.eval_steps",)),
    read("max_ckpt_to_keep", "checkpoint.keepLast", text="0 or unset: 64, the most"),
    becomes("resume_from_checkpoint", "checkpoint.resume", convert=resume),
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
        *optimizer_rows(f"{prefix}training_args.", "train.optimizer", "max_grad_norm"),
        *_passes(f"{prefix}training_args."),
        *_model_and_data(prefix),
        *_megatron(prefix, config),
        *_batches(prefix),
    )


def optimizer_rows(t: str, target: str, *clip: str) -> tuple[Row, ...]:
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
        read(f"{t}per_device_train_batch_size", "train.miniBatches, train.tokensPerMicroBatch", 8),
        read(
            f"{t}gradient_accumulation_steps", "train.miniBatches", 1, text="x batch per device x data-parallel ranks"
        ),
        read(f"{t}num_train_epochs", "train.epochs", 1.0, text="of RLVR: not read"),
    )


def _model_and_data(prefix: str) -> tuple[Row, ...]:
    return (
        becomes(f"{prefix}model_args.dtype", "model.dtype", "bf16", DTYPES),
        read(f"{prefix}model_args.lora_rank", "model.lora.rank", 8, text="with lora_target"),
        read(f"{prefix}model_args.lora_alpha", "model.lora.alpha", text="unset: twice lora_rank"),
        read(f"{prefix}model_args.lora_target", "model.lora.targets", text="unset: no adapters"),
        lacks(f"{prefix}model_args.adapter_name_or_path", "name adapters to begin from in model.lora.path"),
        becomes(f"{prefix}router_replay.mode", "algorithm.rolloutCorrection.routerReplay", "disable", REPLAY),
        implied(f"{prefix}router_replay.*"),
        lacks(f"{prefix}model_args.freeze_module_prefix", "all parameters are trained"),
        *(
            implied(f"{prefix}model_args.{key}")
            for key in ("attn_implementation", "flash_attn", "model_type", "model_name_or_path")
        ),
        ulysses_row(f"{prefix}model_args.ulysses_size"),
        checkpointing_row(f"{prefix}model_args.disable_gradient_checkpointing", False),
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
        lacks(f"{c}optimizer_cpu_offload", "see trainer.offload.update"),
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
    read("reference.model_args.model_name_or_path", "reference.path", text="of on-policy distillation: the teacher"),
    read("reference.opd_kl_coef", "algorithm.distillation.coefficient", 1.0),
    implied("reference.tag_included", "there is one teacher"),
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

SUPERVISED = (
    becomes("sequence_length", "data.maxTokens", 1024),
    read("prompt_key", "data.promptKey", "instruction"),
    read("query_key", "data.format", text="alpaca, with instruction, input and output"),
    read("response_key", "data.responseKey", "output"),
    lacks("system_key", "the system prompt is the data's, or the chat template's"),
    becomes("chosen_key", "data.chosenKey"),
    becomes("rejected_key", "data.rejectedKey"),
    read("ipo", "dpo.loss", False),
    becomes("beta", "dpo.beta"),
    becomes("label_smoothing", "dpo.labelSmoothing"),
    read("validation.data_args.file_name", "data.validation"),
    implied("validation.data_args.*"),
)

STEPS = read("max_steps", "train.steps", 500)
SFT_ROWS = (
    *COMMON,
    implied("max_steps", "sft ends after its epochs, in ROLL too"),
    *training("sft_train."),
    *SUPERVISED,
)
DPO_ROWS = (*COMMON, STEPS, *training("actor_train."), *SUPERVISED, *REFERENCE)
