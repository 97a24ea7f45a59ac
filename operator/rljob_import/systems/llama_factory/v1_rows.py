"""The keys of LLaMA-Factory's v1 form, and what each of them becomes. What several of them make together is in llama_factory_v1.py."""

from rljob_import.table import becomes, implied, lacks, must, read

PREFERENCES = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing")
MERGING = ("export_size", "export_hub_model_id", "infer_dtype", "export_legacy_format")

MODEL = (
    read("model", "model.path"),
    read("model_class", "task", "llm", text="cls: rewardModel; llm: dpo with its keys or --env COMMAND=dpo, else sft"),
    becomes("trust_remote_code", "model.trustRemoteCode", False),
    lacks("custom_chat_template", "write it to a file, and name that in data.chatTemplate.path"),
    read("template", "", text="the tokenizer's chat template takes its place"),
    implied("flash_attn", "attention and kernels are Transformer Engine's"),
    implied("kernel_config.*", "attention and kernels are Transformer Engine's"),
    implied("init_config.*", "every rank reads its part of the model"),
    lacks("quant_config.*", "weights are not quantised"),
    read("peft_config.name", "model.lora", text="lora; with freeze all parameters are trained"),
    read("peft_config.r", "model.lora.rank", 8),
    read("peft_config.lora_alpha", "model.lora.alpha", 16),
    read("peft_config.target_modules", "model.lora.targets", "all"),
    read("peft_config.adapter_name_or_path", "model.lora.path", text="one directory"),
    lacks("peft_config.lora_dropout", "adapters have no dropout", 0, 0.0),
    *(lacks(f"peft_config.use_{key}", "adapters are LoRA's") for key in ("rslora", "dora")),
    lacks("peft_config.modules_to_save", "adapters alone are trained"),
    *(implied(f"peft_config.{key}", "read where adapters are merged") for key in MERGING),
    *(
        lacks(f"peft_config.freeze_{key}", "all parameters are trained")
        for key in ("trainable_layers", "trainable_modules", "extra_modules")
    ),
    implied("peft_config.cast_trainable_params_to_fp32", "the optimizer's parameters are float32"),
)

DATA = (
    read("train_dataset", "data.train, data.format", text="a YAML of data sets: see --dataset-info"),
    read("eval_dataset", "data.validation"),
    becomes("cutoff_len", "data.maxTokens", 2048),
    becomes("seed", "data.seed", 42),
    implied("batching_strategy", "samples are packed up to tokensPerMicroBatch, and do not see each other"),
    implied("batching_workers"),
    *(implied(key, "of its chat, not of training") for key in ("sample_backend", "max_new_tokens")),
)

TRAIN = (
    read("micro_batch_size", "train.tokensPerMicroBatch", 1),
    read("global_batch_size", "train.samplesPerStep", text="unset: micro_batch_size x data-parallel ranks"),
    read("num_train_epochs", "train.epochs", 3, text="with --rows: train.steps"),
    read("max_steps", "train.steps"),
    becomes("learning_rate", "train.optimizer.learningRate", 1e-4),
    becomes("max_grad_norm", "train.optimizer.clipGrad", 1.0),
    lacks("optim_config.name", "the optimizer is AdamW"),
    implied("optim_config.*", "read with optim_config.name only"),
    lacks("lr_scheduler_config.*", "the learning rate is constant, as without it"),
    read("bf16", "model.dtype", True, text="true: bfloat16; false: float32"),
    implied("enable_activation_checkpointing", "trainer.recompute says what is computed again"),
    must("full_determinism", False, "steps repeat bit for bit on CPU only"),
    read("pref_loss", "dpo.loss", "sigmoid"),
    becomes("pref_beta", "dpo.beta", 0.1),
    becomes("pref_ftx", "dpo.sftCoefficient", 0.0),
    becomes("dpo_label_smoothing", "dpo.labelSmoothing", 0.0),
    read("simpo_gamma", "dpo.margin", 0.5, text="with pref_loss: simpo"),
    lacks("ld_alpha", "all tokens of a response count alike"),
)

PARALLEL = (
    becomes("cp_size", "trainer.parallelism.context", 1),
    becomes("dist_config.ep_size", "trainer.parallelism.expert", 1),
    implied("cp_mode", "Megatron's context parallelism takes its place"),
    implied("dist_config.*", "Megatron's distributed optimizer takes its place"),
    *(
        implied(key, "ranks that are not of one copy are data-parallel")
        for key in ("dp_size", "mp_replicate_size", "mp_shard_size")
    ),
    implied("dist_timeout"),
)

OUTPUT = (
    read("output_dir", "checkpoint.path, metadata.name"),
    read("save_steps", "checkpoint.everySteps", text="unset: only at the end"),
    lacks("save_epochs", "intervals are steps"),
    read("save_ckpt_as_hf", "checkpoint.exportEverySteps", False),
    read("save_total_limit", "checkpoint.keepLast", text="unset: 64, the most"),
    lacks("resume_from_checkpoint", "checkpoint.resumeFrom takes an RLJob's checkpoints", "auto"),
    implied("logging_steps"),
)

ROWS = (*MODEL, *DATA, *TRAIN, *PARALLEL, *OUTPUT)
