"""LLaMA-Factory: flat YAML; `stage` sft, dpo, rm and pt are tasks of an RLJob. Defaults are its own and those of transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubectl_rljob.importer import places
from kubectl_rljob.importer.amounts import Length, Warmup
from kubectl_rljob.importer.hydra import plain
from kubectl_rljob.importer.megatron import (
    Layout,
    layout_rows,
    recompute,
    recompute_rows,
    transformer_config,
    transformer_row,
    virtual_pipeline,
)
from kubectl_rljob.importer.settings import Settings, System
from kubectl_rljob.importer.sources import Source, tree_of
from kubectl_rljob.importer.table import Field, Problem, Said, becomes, implied, lacks, must, read
from kubectl_rljob.importer.values import choice, items, place
from rljob_api.spec.job import LifecycleSpec

TASKS = {"sft": "sft", "dpo": "dpo", "rm": "rewardModel", "pt": "pretrain"}
PAIRS = ("dpo", "rm")
LOSSES = {"sigmoid": "sigmoid", "ipo": "ipo", "hinge": "hinge", "simpo": "simpo", "orpo": "orpo"}
WITHOUT_REFERENCE = ("simpo", "orpo")
IMAGES = (
    "image_max_pixels",
    "video_max_pixels",
    "image_min_pixels",
    "video_min_pixels",
    "freeze_vision_tower",
    "freeze_multi_modal_projector",
    "freeze_language_model",
    "video_fps",
    "video_maxlen",
)

MODEL = (
    read("model_name_or_path", "model.path"),
    becomes("trust_remote_code", "model.trustRemoteCode", False),
    read("megatron_pretrained_checkpoint", "model.megatronCheckpoint"),
    read("stage", "task", "sft", text="sft, dpo, rm and pt"),
    must("do_train", True, "a job trains"),
    must("finetuning_type", "full", "all parameters are trained: there is no LoRA, and no freezing"),
    implied("use_mca", "Megatron trains", also=("use_megatron_bridge",)),
    lacks("lora_rank", "all parameters are trained: there is no LoRA"),
    *(implied(f"lora_{key}", "read with LoRA only") for key in ("alpha", "dropout", "target")),
    *(
        lacks(key, "weights are not quantised")
        for key in ("quantization_bit", "quantization_method", "double_quantization")
    ),
    *(lacks(key, "models read text only") for key in IMAGES),
    *(
        lacks(key, "the optimizer is AdamW")
        for key in ("use_galore", "use_badam", "use_apollo", "use_muon", "use_adam_mini")
    ),
    lacks("optim", "the optimizer is AdamW", "adamw_torch", "adamw_torch_fused", "adamw"),
    implied("deepspeed", "Megatron's distributed optimizer takes its place", also=("fsdp", "fsdp_config")),
    *(
        implied(key, "attention and kernels are Transformer Engine's")
        for key in ("flash_attn", "enable_liger_kernel", "use_unsloth")
    ),
    implied(
        "gradient_checkpointing",
        "trainer.recompute says what is computed again",
        also=("disable_gradient_checkpointing",),
    ),
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
    lacks("default_system", "the system prompt is the data's, or the chat template's"),
    lacks("enable_thinking", "the chat template gets no arguments", True),
    lacks("reasoning_effort", "the chat template gets no arguments"),
    lacks("tool_format", "conversations have no tools"),
    lacks("tokenized_path", "data are tokenised by the job"),
    *(
        implied(key, "samples are always packed, and do not see each other")
        for key in ("packing", "neat_packing", "use_packed_sequences")
    ),
    becomes("disable_shuffling", "data.shuffle", convert=lambda value: not value),
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
        choice(constant="constant", constant_with_warmup="constant", linear="linear", cosine="cosine"),
    ),
    read("warmup_steps", "train.optimizer.warmupSteps", 0),
    read("warmup_ratio", "train.optimizer.warmupSteps", 0.0, text="needs --rows while epochs are given"),
    becomes("weight_decay", "train.optimizer.weightDecay", 0.0),
    becomes("adam_beta1", "train.optimizer.beta1", 0.9),
    becomes("adam_beta2", "train.optimizer.beta2", 0.999, text="its default is 0.999"),
    becomes("adam_epsilon", "train.optimizer.epsilon", 1e-8),
    becomes("max_grad_norm", "train.optimizer.clipGrad", 1.0),
    lacks("lr_scheduler_kwargs.*", "schedules have no further settings"),
    becomes("label_smoothing_factor", "sft.labelSmoothing"),
    becomes("pref_beta", "dpo.beta", 0.1),
    read("pref_loss", "dpo.loss", "sigmoid"),
    becomes("dpo_label_smoothing", "dpo.labelSmoothing", 0.0),
    becomes("pref_ftx", "dpo.sftCoefficient", 0.0),
    read("simpo_gamma", "dpo.margin", 0.5, text="with pref_loss: simpo"),
    read("ref_model", "reference.path"),
    read("bf16", "model.dtype", text="true: bfloat16", also=("pure_bf16",)),
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
    implied("overwrite_output_dir", "checkpoint.resume: auto resumes what is there"),
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
        text="works between the optimizer steps of a step, of which there is one",
    ),
    must("use_distributed_optimizer", True, "the optimizer is always distributed"),
    transformer_row(""),
)


def stage(settings: Settings) -> Iterator[Said]:
    if settings["stage"] not in TASKS:
        yield Problem(settings.origin("stage"), f"{settings['stage']} is no task of an RLJob; {', '.join(TASKS)} are")
    else:
        yield settings.field("task", TASKS[settings["stage"]], "stage")
    if "model_name_or_path" not in settings:
        yield Problem("model_name_or_path", "is missing")
    yield from places.found(settings, "model.path", "model_name_or_path")
    if "megatron_pretrained_checkpoint" in settings:
        yield from places.found(settings, "model.megatronCheckpoint", "megatron_pretrained_checkpoint")
    if settings["stage"] != "pt" and "template" in settings:
        yield settings.changed("template", "the tokenizer's chat template, whose text may differ")
    if "bf16" in settings:
        yield settings.field("model.dtype", "bfloat16" if settings["bf16"] else "float32", "bf16")


def data(settings: Settings) -> Iterator[Said]:
    if "dataset" not in settings:
        yield Problem("dataset", "is missing")
        return
    for key, field in (("dataset", "data.train"), ("eval_dataset", "data.validation")):
        if key in settings:
            names = _names(settings[key])
            yield settings.field(field, [_file(settings, name) for name in names], key, why=", ".join(names))
            yield settings.changed(
                key, f"put on the volume of --claim, at {', '.join(_file(settings, n) for n in names)}"
            )
    yield from _format(settings, _names(settings["dataset"])[0])
    if settings["train_on_prompt"] or settings["mask_history"]:
        key = "train_on_prompt" if settings["train_on_prompt"] else "mask_history"
        yield settings.field("data.lossOn", "all" if settings["train_on_prompt"] else "lastAssistant", key)
    if settings["stage"] == "sft":
        yield Field("data.overlong", "cut", "cutoff_len: longer ones are cut there")
    elif "cutoff_len" in settings and settings["stage"] in ("dpo", "rm"):
        yield settings.changed("cutoff_len", "longer pairs are left out, not cut")
    if "interleave_probs" in settings:
        yield settings.field(
            "data.weights", [float(p) for p in _names(settings["interleave_probs"])], "interleave_probs"
        )


def _names(value: Any) -> list[str]:
    return [name.strip() for one in items(value) for name in str(one).split(",")]


def _file(settings: Settings, name: str) -> str:
    """Of a data set: by dataset_info.json, else as its name says."""
    found = settings.options.data_sets.get(name, {})
    file = found.get("file_name") or (
        f"{found['hf_hub_url']}/train.parquet" if "hf_hub_url" in found else f"{name}.json"
    )
    directory = "" if "hf_hub_url" in found and "file_name" not in found else f"{settings['dataset_dir']}/"
    return place(f"{directory}{file}", settings.options.root)


ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}


def _format(settings: Settings, name: str) -> Iterator[Said]:
    """Of the first data set, which stands for all."""
    found, source = settings.options.data_sets.get(name), f"--dataset-info: {name}"
    if found is None:
        yield settings.changed(
            "dataset", "its rows are read by the columns of the first one (data.format: auto); see --dataset-info"
        )
        return
    columns, tags = found.get("columns", {}), found.get("tags", {})
    if settings["stage"] == "pt":
        yield Field("data.format", "text", source)
        yield Field("data.textKey", columns.get("prompt", "text"), source)
    elif settings["stage"] in PAIRS:
        for role in ("chosen", "rejected"):
            yield Field(f"data.{role}Key", columns.get(role, role), source)
    elif found.get("formatting") == "sharegpt":
        messages = tags.get("role_tag") == "role" and tags.get("content_tag") == "content"
        yield Field("data.format", "messages" if messages else "sharegpt", source)
        if messages:
            yield Field("data.messagesKey", columns.get("messages", "messages"), source)
    elif all(columns.get(key, ours) == ours for key, ours in ALPACA.items()):
        yield Field("data.format", "alpaca", source)
    else:
        yield Field("data.format", "columns", source)
        yield Field("data.promptKey", columns.get("prompt", "instruction"), source)
        yield Field("data.responseKey", columns.get("response", "output"), source)


def machine(settings: Settings) -> tuple[int, int]:
    """Nodes, and GPUs of each: of the command line, else as few as hold the layout."""
    layout, options = Layout.of(settings, ""), settings.options
    ranks = layout.copy
    while ranks % (layout.pipeline * layout.expert):
        ranks += layout.copy
    per_node = options.gpus_per_node or min(8, ranks)
    return options.nodes or max(1, ranks // per_node), per_node


def amounts(settings: Settings) -> Iterator[Said]:
    nodes, gpus = machine(settings)
    layout, options = Layout.of(settings, ""), settings.options
    source = (
        "--nodes, --gpus-per-node"
        if options.nodes or options.gpus_per_node
        else "the least that holds the layout: see --nodes, --gpus-per-node"
    )
    yield Field("trainer.nodes", nodes, source)
    yield Field("trainer.processesPerNode", gpus, source)
    copies = max(1, nodes * gpus // layout.copy)
    each, steps = settings.integer("per_device_train_batch_size"), settings.integer("gradient_accumulation_steps")
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps")
    yield settings.field("train.samplesPerStep", each * steps * copies, *keys, why=f"x {copies} data-parallel ranks")
    longest = layout.aligned(settings.integer("cutoff_len")) * (2 if settings["stage"] in PAIRS else 1)
    yield settings.field("train.tokensPerMicroBatch", each * longest, keys[0], "cutoff_len")
    length = Length("max_steps", "num_train_epochs", each * steps * copies)
    yield from length.said(settings)
    yield from Warmup("warmup_steps", "warmup_ratio").said(settings, length.total(settings), 1)


def layout(settings: Settings) -> Iterator[Said]:
    yield from virtual_pipeline(settings, "")
    yield from recompute(settings, "")
    yield from transformer_config(settings, "")
    if settings["overlap_param_gather"]:
        yield settings.implied(
            "overlap_param_gather", "it works between the optimizer steps of one step, of which there is one"
        )


def preferences(settings: Settings) -> Iterator[Said]:
    loss = settings["pref_loss"]
    if settings["stage"] == "dpo":
        if loss not in LOSSES:
            yield settings.lacking("pref_loss", f"the losses are {', '.join(LOSSES)}; sigmoid in its place")
        yield settings.field("dpo.loss", LOSSES.get(loss, "sigmoid"), "pref_loss")
        if loss == "simpo":
            yield settings.field("dpo.margin", settings.number("simpo_gamma"), "simpo_gamma")
    if "ref_model" in settings:
        yield from places.found(settings, "reference.path", "ref_model")


def output(settings: Settings) -> Iterator[Said]:
    directory = settings["output_dir"] or "saves/llamafactory"
    yield from places.written(settings, "checkpoint.path", "output_dir", directory)
    yield from places.named(settings, "output_dir", str(directory).rstrip("/").split("/")[-2:])
    if settings["save_strategy"] == "steps":
        yield settings.field("checkpoint.everySteps", settings.integer("save_steps"), "save_steps")
    else:
        yield settings.field("checkpoint.everySteps", 0, "save_strategy", why="intervals are steps")
    yield from places.kept(settings, "save_total_limit")
    if settings["eval_strategy"] == "steps" and "eval_dataset" in settings:
        yield settings.field(
            "evaluation.everySteps", settings.integer("eval_steps") if "eval_steps" in settings else 500, "eval_steps"
        )
    day = 86400
    if "ddp_timeout" in settings and settings.integer("ddp_timeout") > LifecycleSpec().stall_timeout_seconds:
        yield settings.field("lifecycle.stallTimeoutSeconds", min(day, settings.integer("ddp_timeout")), "ddp_timeout")
    if "wandb" in items(settings["report_to"]):
        yield settings.field("env", [{"name": "WANDB_PROJECT", "value": "llamafactory"}], "report_to")


def unread(settings: Settings) -> dict[str, str]:
    """Sections of other tasks."""
    task = settings["stage"]
    found = {} if task == "dpo" else {"dpo": "read by stage dpo only"}
    if task not in ("sft", "pt"):
        found["sft"] = "read by stages sft and pt only"
    if task != "sft":
        found["data.lossOn"] = "read by stage sft only"
    if task != "dpo" or settings["pref_loss"] in WITHOUT_REFERENCE:
        found["reference"] = "no reference is held"
    return found


LLAMA_FACTORY = System(
    "LLaMA-Factory",
    (*MODEL, *DATA, *TRAIN, *OUTPUT, *PARALLEL),
    (stage, data, amounts, layout, preferences, output, places.pods),
    unread,
)


def read_file(text: str, environment: Mapping[str, str]) -> Source:
    """Flat YAML. Raises Unreadable."""
    values = {k: plain(v) for k, v in tree_of(text).items()}
    return Source(LLAMA_FACTORY, values)
