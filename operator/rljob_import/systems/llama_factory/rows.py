"""LLaMA-Factory's keys, and what each of them becomes. What several of them make together is in `flat.py`."""

import operator

from rljob_import.shared.fsdp import checkpointing_row
from rljob_import.shared.megatron import (
    layout_rows,
    recompute_rows,
    transformer_row,
)
from rljob_import.shared.values import IMAGES, choice
from rljob_import.systems.llama_factory.further_rows import QUIET, TRAINED
from rljob_import.table import becomes, implied, lacks, must, read

VIDEO = ("video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen")
OPTIMIZERS = (
    *(
        f"{name}_{key}"
        for name in ("galore", "apollo")
        for key in ("layerwise", "target", "rank", "scale", "scale_type")
    ),
    *(f"badam_{key}" for key in ("mode", "switch_mode", "switch_interval", "verbose")),
)
SFT_LOSSES = ("use_dft_loss", "use_asft_loss", "use_eaft_loss")

MODEL = (
    read("model_name_or_path", "model.path"),
    becomes("trust_remote_code", "model.trustRemoteCode", False),
    read("megatron_pretrained_checkpoint", "model.megatronCheckpoint"),
    read("stage", "task", "sft", text="sft, dpo, rm and pt"),
    must("do_train", True, "a job trains"),
    read("finetuning_type", "model.lora", "lora", text="lora; with freeze all parameters are trained"),
    read("use_mca", "", False, also=("use_megatron_bridge",), text="Megatron trains, with it or without"),
    read("lora_rank", "model.lora.rank", 8),
    read("lora_alpha", "model.lora.alpha", text="unset: twice lora_rank"),
    read("lora_target", "model.lora.targets", "all"),
    read("use_rslora", "model.lora.alpha", False, text="x the root of lora_rank"),
    read("adapter_name_or_path", "model.lora.path", text="one directory"),
    lacks("create_new_adapter", "merge adapter_name_or_path into the model first"),
    lacks("lora_dropout", "adapters have no dropout", 0, 0.0),
    *(
        lacks(key, "weights are not quantised")
        for key in ("quantization_bit", "quantization_method", "double_quantization")
    ),
    *(lacks(key, "models read texts and images only") for key in VIDEO),
    *(lacks(key, IMAGES) for key in ("image_max_pixels", "image_min_pixels")),
    read("freeze_vision_tower", "model.freeze", True, text="with images"),
    read("freeze_multi_modal_projector", "model.freeze", True, text="with images"),
    lacks("freeze_language_model", "all parameters of the language model are trained"),
    *(lacks(f"freeze_trainable_{key}", "all parameters are trained") for key in ("layers", "modules")),
    *(lacks(key, "the model is as its config.json says") for key in ("use_llama_pro", "mixture_of_depths")),
    *(lacks(key, "adapters are LoRA's") for key in ("oft_block_size", "oft_target", "loraplus_lr_ratio", "use_dora")),
    *(lacks(f"pissa_{key}", "adapters begin as LoRA's do") for key in ("init", "iter", "convert")),
    *(read(key, "", False, text="refused: the loss is the cross-entropy") for key in SFT_LOSSES),
    implied("asft_alpha", "read with use_asft_loss only"),
    *(lacks(key, "trained in bfloat16 or float32") for key in ("fp8", "fp8_enable_fsdp_float8_all_gather")),
    *(implied(key) for key in ("fp8_backend", "fsdp_transformer_layer_cls_to_wrap", "use_v1_kernels")),
    implied("use_kt", "Megatron trains, on GPUs"),
    *(implied(f"kt_{key}") for key in ("cpu_activation", "weight_path", "non_expert_weight_path", "config")),
    *(
        lacks(key, "the optimizer is AdamW")
        for key in ("use_galore", "use_badam", "use_apollo", "use_muon", "use_adam_mini")
    ),
    *(implied(key, f"read with use_{key.split('_')[0]} only") for key in OPTIMIZERS),
    lacks("optim", "the optimizer is AdamW", "adamw_torch", "adamw_torch_fused", "adamw"),
    implied("deepspeed", "Megatron's distributed optimizer takes its place", also=("fsdp", "fsdp_config")),
    *(
        implied(key, "attention and kernels are Transformer Engine's")
        for key in ("flash_attn", "enable_liger_kernel", "use_unsloth")
    ),
    checkpointing_row("disable_gradient_checkpointing", False),
    implied("gradient_checkpointing", "disable_gradient_checkpointing decides"),
    lacks("rope_scaling", "the model is as its config.json says"),
    lacks("resize_vocab", "the model is as its config.json says"),
    lacks("neftune_noise_alpha", "embeddings get no noise"),
    *(
        implied(key)
        for key in ("model_revision", "cache_dir", "use_fast_tokenizer", "low_cpu_mem_usage", "run_name", "seed_worker")
    ),
)

DATA = (
    read("dataset", "data.train, data.format", text="see --dataset-info"),
    read("dataset_dir", "data.train", "data"),
    read("eval_dataset", "data.validation"),
    becomes("cutoff_len", "data.maxTokens", 2048),
    read("template", "", text="the tokenizer's chat template takes its place"),
    read("train_on_prompt", "data.lossOn", False, text="all"),
    read("mask_history", "data.lossOn", False, text="lastAssistant"),
    read("interleave_probs", "data.weights"),
    lacks("mix_strategy", "files are mixed by data.weights or their sizes", "concat"),
    lacks("max_samples", "all rows are used"),
    lacks("val_size", "name held-out files in data.validation", 0, 0.0),
    lacks("streaming", "data are read from files"),
    becomes("default_system", "data.chatTemplate.systemPrompt"),
    becomes("enable_thinking", "data.chatTemplate.arguments.enable_thinking"),
    becomes("reasoning_effort", "data.chatTemplate.arguments.reasoning_effort"),
    lacks("tool_format", "conversations have no tools"),
    lacks("tokenized_path", "data are tokenised by the job"),
    *(
        read(key, "", text="samples are always packed, do not see each other, and are counted one by one")
        for key in ("packing", "neat_packing")
    ),
    implied("use_packed_sequences", "samples are always packed, and do not see each other"),
    becomes("disable_shuffling", "data.shuffle", convert=operator.not_),
    becomes("seed", "data.seed", 42),
    *(
        implied(key)
        for key in (
            "data_seed",
            "preprocessing_num_workers",
            "dataloader_num_workers",
            "overwrite_cache",
            "group_by_length",
        )
    ),
    *(
        implied(key)
        for key in (
            "preprocessing_batch_size",
            "dataloader_pin_memory",
            "remove_unused_columns",
            "ignore_pad_token_for_loss",
        )
    ),
)

TRAIN = (
    read(
        "per_device_train_batch_size",
        "train.samplesPerStep",
        8,
        text="x gradient_accumulation_steps x data-parallel ranks",
    ),
    read("gradient_accumulation_steps", "train.samplesPerStep", 1),
    read("num_train_epochs", "train.epochs", 3.0, text="with --rows: train.steps"),
    read("max_steps", "train.steps"),
    becomes("learning_rate", "train.optimizer.learningRate", 5e-5),
    becomes(
        "lr_scheduler_type",
        "train.optimizer.decay",
        "linear",
        choice(
            constant="constant",
            constant_with_warmup="constant",
            linear="linear",
            cosine="cosine",
            cosine_with_min_lr="cosine",
        ),
    ),
    read("warmup_steps", "train.optimizer.warmupSteps", 0),
    read("warmup_ratio", "train.optimizer.warmupSteps", 0.0, text="needs --rows while epochs are given"),
    becomes("weight_decay", "train.optimizer.weightDecay", 0.0),
    becomes("adam_beta1", "train.optimizer.beta1", 0.9),
    becomes("adam_beta2", "train.optimizer.beta2", 0.999, text="its default is 0.999"),
    becomes("adam_epsilon", "train.optimizer.epsilon", 1e-8),
    becomes("max_grad_norm", "train.optimizer.clipGrad", 1.0),
    read("lr_scheduler_kwargs", "train.optimizer.minLearningRate", text="of cosine_with_min_lr"),
    becomes("label_smoothing_factor", "sft.labelSmoothing"),
    becomes("pref_beta", "dpo.beta", 0.1),
    read("pref_loss", "dpo.loss", "sigmoid"),
    becomes("dpo_label_smoothing", "dpo.labelSmoothing", 0.0),
    becomes("pref_ftx", "dpo.sftCoefficient", 0.0),
    read("simpo_gamma", "dpo.margin", 0.5, text="with pref_loss: simpo"),
    read("ref_model", "reference.path"),
    read("bf16", "model.dtype", False, text="true: bfloat16", also=("pure_bf16",)),
    lacks("fp16", "trained in bfloat16 or float32"),
    implied("mixed_precision"),
)

OUTPUT = (
    read("output_dir", "checkpoint.path, metadata.name"),
    read("save_steps", "checkpoint.everySteps", 500),
    read("save_strategy", "checkpoint.everySteps", "steps"),
    read("save_total_limit", "checkpoint.keepLast", text="unset: 64, the most"),
    lacks("save_only_model", "checkpoints hold the optimizer too"),
    becomes("export_hf_on_finish", "checkpoint.exportHuggingFace"),
    lacks("resume_from_checkpoint", "checkpoint.resumeFrom takes an RLJob's checkpoints", True),
    lacks("overwrite_output_dir", "what is in checkpoint.path is resumed; to begin anew, set checkpoint.resume: never"),
    read("eval_steps", "evaluation.everySteps"),
    read("eval_strategy", "evaluation.everySteps", "no", also=("evaluation_strategy",)),
    lacks("load_best_model_at_end", "the last checkpoint is exported"),
    read("report_to", "env", text="wandb: WANDB_PROJECT"),
    lacks("use_swanlab", "metrics are written to TensorBoard and metrics.jsonl"),
    read("ddp_timeout", "lifecycle.stallTimeoutSeconds", text="if longer than the default, and at most a day"),
    *(
        implied(key)
        for key in (
            "logging_steps",
            "plot_loss",
            "per_device_eval_batch_size",
            "logging_dir",
            "logging_first_step",
            "include_num_input_tokens_seen",
        )
    ),
    *(
        implied(key)
        for key in (
            "use_reentrant_gc",
            "gradient_checkpointing_kwargs",
            "ray_run_name",
            "ray_storage_path",
            "ray_num_workers",
        )
    ),
    *(implied(key) for key in ("placement_strategy", "resources_per_worker", "trainer_resources", "ray_init_kwargs")),
    *(
        implied(key)
        for key in (
            "do_eval",
            "do_predict",
            "predict_with_generate",
            "overwrite_cache_dir",
            "include_tokens_per_second",
        )
    ),
    lacks("extra_config", "Megatron-Bridge's settings are not read"),
)

PARALLEL = (
    *layout_rows("", {"sequence_parallel": False}),
    *recompute_rows(""),
    becomes("overlap_grad_reduce", "trainer.overlap.gradReduce"),
    read(
        "overlap_param_gather",
        "trainer.overlap.paramGather",
        False,
        text="works between the optimizer steps of a step, of which there is one",
    ),
    must("use_distributed_optimizer", True, "the optimizer is always distributed"),
    transformer_row(""),
)

ROWS = (*MODEL, *DATA, *TRAIN, *OUTPUT, *PARALLEL, *TRAINED, *QUIET)
