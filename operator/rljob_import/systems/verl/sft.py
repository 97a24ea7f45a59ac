"""verl's trainers of conversations: `task: sft`. `verl.trainer.sft_trainer`, and `verl.trainer.fsdp_sft_trainer` of 2025, which has other defaults
and also reads a prompt and a response from two columns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rljob_import.settings import Settings, System
from rljob_import.shared import places
from rljob_import.shared.adapters import verl_adapters, verl_rows
from rljob_import.shared.bases import BASES
from rljob_import.shared.fsdp import (
    checkpointed,
    checkpointing_row,
    freed_gradients,
    other_trainer,
    shared_sequences,
    ulysses_row,
    with_ulysses,
)
from rljob_import.shared.megatron import (
    RoleLayout,
    layout_rows,
    recompute,
    recompute_rows,
    transformer_config,
    transformer_row,
    virtual_pipeline,
)
from rljob_import.shared.training import Length
from rljob_import.shared.values import MULTI_TOKEN, VERL, choice, items
from rljob_import.systems.verl.algorithm import environment
from rljob_import.systems.verl.engine import bases
from rljob_import.systems.verl.roles import optimizer
from rljob_import.systems.verl.rows import CUSTOM, megatron_rows, optimizer_rows
from rljob_import.table import Field, Said, becomes, implied, lacks, must, read, verbatim

ULYSSES = "engine.ulysses_sequence_parallel_size"
ROWS = (
    read("model.path", "model.path", "~/models/deepseek-llm-7b-chat", also=("model.partial_pretrain",)),
    becomes("model.trust_remote_code", "model.trustRemoteCode", False),
    must("model.use_remove_padding", True, "sequences are always packed", also=("use_remove_padding",)),
    *verl_rows("model."),
    *(lacks(f"model.mtp.{key}", MULTI_TOKEN) for key in ("enable", "enable_train")),
    implied("model.mtp.*"),
    lacks("model.override_config.*", "the model is as its config.json says"),
    lacks("model.custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    lacks("model.external_lib", "no further packages are imported"),
    *(lacks(f"model.{key}", "is in the model's directory") for key in ("tokenizer_path", "hf_config_path")),
    checkpointing_row("model.enable_gradient_checkpointing", True),
    *(
        implied(f"model.{key}")
        for key in ("use_fused_kernels", "fused_kernel_options.*", "use_liger", "use_shm", "tiled_mlp.*", "strategy")
    ),
    lacks("model.enable_activation_offload", "trainer.transformerConfig has Megatron's own way"),
    implied("model.fsdp_config.*"),
    lacks("model.target_parameters", "adapters are on the matrices of model.lora.targets", []),
    read("data.train_files", "data.train", "~/data/gsm8k/train.parquet"),
    read("data.val_files", "data.validation"),
    becomes("data.messages_key", "data.messagesKey", "messages", also=("data.multiturn.messages_key",)),
    read("data.prompt_key", "data.promptKey, data.format"),
    read("data.response_key", "data.responseKey, data.format"),
    *(read(f"data.{role}_dict_keys", f"data.{role}Key", text="the path below it") for role in ("prompt", "response")),
    becomes("data.max_length", "data.maxTokens", 1024),
    becomes("data.train_batch_size", "train.samplesPerStep", 256),
    read("data.use_dynamic_bsz", "train.tokensPerMicroBatch", True),
    read("data.max_token_len_per_gpu", "train.tokensPerMicroBatch", 8192, text="x context parallel size"),
    read(
        "data.micro_batch_size_per_gpu",
        "train.tokensPerMicroBatch",
        4,
        text="x data.max_length",
        also=("data.micro_batch_size",),
    ),
    read("data.truncation", "data.overlong", "error", text="longer conversations are left out and counted"),
    implied("data.pad_mode", "sequences are always packed"),
    verbatim("data.apply_chat_template_kwargs", "data.chatTemplate.arguments", frozenset(), "as they are"),
    lacks("data.enable_thinking_key", "rows have no arguments of the chat template", "enable_thinking"),
    becomes("data.enable_thinking_default", "data.chatTemplate.arguments.enable_thinking"),
    lacks("data.tools_key", "conversations have no tools", "tools"),
    lacks("data.custom_cls.path", CUSTOM),
    read("data.multiturn.enable", "data.format"),
    *(lacks(f"data.{key}", "all rows are used", -1) for key in ("train_max_samples", "val_max_samples")),
    *(implied(f"data.{key}") for key in ("balance_dp_token", "use_shm", "num_workers")),
    *(implied(f"data.{key}") for key in ("ignore_input_ids_mismatch", "custom_cls.name", "trust_remote_code")),
    *optimizer_rows("", "train.optimizer", 1e-3),
    *layout_rows("engine.", {"sequence_parallel": True}),
    becomes("engine.dtype", "model.dtype", "bfloat16", choice(bfloat16="bfloat16", float32="float32")),
    becomes("engine.param_offload", "trainer.offload.parameters", False),
    becomes("engine.grad_offload", "trainer.offload.gradients", False),
    becomes("engine.optimizer_offload", "trainer.offload.optimizer", False),
    read("engine.use_dist_checkpointing", "model.megatronCheckpoint", False),
    read("engine.dist_checkpointing_path", "model.megatronCheckpoint"),
    *megatron_rows("engine."),
    *recompute_rows("engine.override_transformer_config."),
    transformer_row("engine.override_transformer_config"),
    *(implied(f"engine.{key}", "of FSDP") for key in ("model_dtype", "fsdp_size", "strategy", "wrap_policy.*")),
    *(
        implied(f"engine.{key}", "of FSDP")
        for key in ("use_torch_compile", "use_orig_params", "reshard_after_forward", "offload_policy")
    ),
    *(implied(key, "of FSDP") for key in ("engine.forward_prefetch", "engine.mixed_precision.*")),
    ulysses_row(ULYSSES, "ulysses_sequence_parallel_size"),
    must("model", "hf_model", "the trainer is Megatron: choose trainer.parallelism"),
    read("engine", "", "fsdp", text="of engines other than megatron the layout is not taken over"),
    implied("optim"),
    read("checkpoint.save_contents", "checkpoint.exportHuggingFace", text="hf_model: at the end of the job"),
    *(implied(f"checkpoint.{key}") for key in ("load_contents", "_target_")),
    read("trainer.nnodes", "trainer.nodes", 1, also=("launcher.nnodes",)),
    read("trainer.n_gpus_per_node", "trainer.processesPerNode", 1, also=("launcher.nproc_per_node",)),
    read("trainer.total_training_steps", "train.steps"),
    read("trainer.total_epochs", "train.epochs", 4, text="with --rows: train.steps"),
    read("trainer.save_freq", "checkpoint.everySteps", -1, text="-1 becomes 0"),
    read("trainer.test_freq", "evaluation.everySteps", -1, text="-1 becomes 0"),
    read("trainer.max_ckpt_to_keep", "checkpoint.keepLast", text="unset: 64, the most"),
    becomes(
        "trainer.resume_mode", "checkpoint.resume", "auto", choice(auto="auto", disable="never", resume_path="auto")
    ),
    lacks("trainer.resume_from_path", "checkpoint.resumeFrom takes an RLJob's checkpoints, not verl's", ""),
    read("trainer.default_local_dir", "checkpoint.path"),
    read("trainer.project_name", "checkpoint.path", "gsm8k-sft"),
    read("trainer.experiment_name", "metadata.name", "test"),
    read("trainer.logger", "env", ["console", "wandb"], text="wandb: WANDB_PROJECT"),
    becomes("trainer.seed", "data.seed", 1),
    lacks("trainer.default_hdfs_dir", "checkpoints are on the volume"),
    *(implied(f"trainer.{key}") for key in ("balance_batch", "profile_interval", "device", "checkpoint.*")),
    read("export.*", "env", text="of a script: NCCL_, VLLM_, TORCH_ and WANDB_ variables"),
    *(implied(f"{key}.*") for key in ("profiler", "global_profiler", "hydra")),
    *(implied(key, "says which engine's settings hold") for key in BASES),
)


def template_arguments(settings: Settings) -> Iterator[Said]:
    """What verl gives the chat template, in every task."""
    for key, given in settings.below("data.apply_chat_template_kwargs").items():
        yield given.field(f"data.chatTemplate.arguments.{key}", given.value)


def on_megatron(settings: Settings) -> bool:
    return bool(settings["engine"] == "megatron")


def sources(settings: Settings) -> Iterator[Said]:
    yield Field("task", "sft", "verl's SFT trainer")
    yield from places.located(settings, "model.path", "model.path")
    yield from verl_adapters(settings, "model.")
    yield from places.files(settings, "data.train", "data.train_files")
    yield from places.files(settings, "data.validation", "data.val_files")
    if has_columns(settings):
        yield from columns(settings)
    else:
        yield settings.field("data.format", "messages", "data.messages_key")
    if settings["data.truncation"] == "right":
        yield settings.field("data.overlong", "cut", "data.truncation", why="their beginning is kept")
    elif settings["data.truncation"] != "error":
        text = "longer conversations are left out and counted; data.overlong: cut keeps their beginning"
        yield settings.changed("data.truncation", text)


def has_columns(settings: Settings) -> bool:
    """Whether rows are a prompt and a response: always in 2025, unless the data have several turns."""
    return bool(settings["data.response_key"]) and not settings["data.multiturn.enable"]


def columns(settings: Settings) -> Iterator[Said]:
    """Source: SFTDataset of verl 0.6: the prompt is one message of the user, and goes through the chat template."""
    yield settings.field("data.format", "columns", "data.response_key")
    for role in ("prompt", "response"):
        key, below = f"data.{role}_key", f"data.{role}_dict_keys"
        inner = [str(name) for name in items(settings[below] or []) if name]
        if settings[key]:
            path = ".".join([str(settings[key]), *inner])
            yield settings.field(f"data.{role}Key", path, key, *([below] if inner else []))
    yield Field("data.chatTemplate.texts", True, "verl puts every prompt through the template")


def amounts(settings: Settings) -> Iterator[Said]:
    sizes = Length("trainer.total_training_steps", "trainer.total_epochs", settings.integer("data.train_batch_size"))
    yield from sizes.said(settings)
    yield from optimizer(settings, "", "train.optimizer", sizes.total(settings), 1)
    layout, longest = RoleLayout.of(settings, "engine."), settings.integer("data.max_length")
    layout = layout if on_megatron(settings) else with_ulysses(settings, layout, ULYSSES)
    key = "data.max_token_len_per_gpu" if settings["data.use_dynamic_bsz"] else "data.micro_batch_size_per_gpu"
    each = layout.context if settings["data.use_dynamic_bsz"] else longest
    count = max(settings.integer(key) * each, layout.aligned(longest))
    yield settings.field("train.tokensPerMicroBatch", count, key)


def layout(settings: Settings) -> Iterator[Said]:
    if not on_megatron(settings):
        key, prefix = "model.enable_gradient_checkpointing", "engine.override_transformer_config."
        yield other_trainer(settings, "engine")
        yield from checkpointed(settings, key, bool(settings[key]), prefix)
        yield from shared_sequences(settings, ULYSSES)
        yield from freed_gradients(settings, "engine.param_offload", "trainer")
    yield from virtual_pipeline(settings, "engine.")
    yield from recompute(settings, "engine.override_transformer_config.")
    yield from transformer_config(settings, "engine.override_transformer_config")
    options = settings.options
    for key, field, given, flag in (
        ("trainer.nnodes", "trainer.nodes", options.nodes, "--nodes"),
        ("trainer.n_gpus_per_node", "trainer.processesPerNode", options.gpus_per_node, "--gpus-per-node"),
    ):
        yield Field(field, given, flag) if given else settings.field(field, settings.integer(key), key)
    if settings["engine.use_dist_checkpointing"]:
        yield from places.located(settings, "model.megatronCheckpoint", "engine.dist_checkpointing_path")


def writing(settings: Settings) -> Iterator[Said]:
    yield from places.written(
        settings,
        "checkpoint.path",
        "trainer.default_local_dir",
        f"checkpoints/{settings['trainer.project_name']}/{settings['trainer.experiment_name']}",
    )
    yield from places.name(settings, "trainer.experiment_name")
    for key, field in (("trainer.save_freq", "checkpoint.everySteps"), ("trainer.test_freq", "evaluation.everySteps")):
        if isinstance(settings[key], str):
            yield settings.lacking(key, "intervals are steps")
        else:
            yield settings.field(field, max(0, settings.integer(key)), key)
    yield from places.kept(settings, "trainer.max_ckpt_to_keep")
    contents = "checkpoint.save_contents"
    if contents in settings:
        yield settings.field(
            "checkpoint.exportHuggingFace", "hf_model" in settings[contents], contents, why="at the end of the job"
        )


def unread(settings: Settings) -> dict[str, str]:
    return {} if settings["data.val_files"] else {"evaluation": "there is no held-out data"}


RULES = (bases, sources, template_arguments, amounts, layout, writing, environment, places.pods)
SFT = System("verl, SFT", ROWS, RULES, VERL, unread)

OF_2025: dict[str, Any] = {
    "data.prompt_key": "question",
    "data.response_key": "answer",
    "data.use_dynamic_bsz": False,
    "optim.lr": 1e-5,
    "optim.betas": [0.9, 0.95],
    "optim.lr_decay_style": "cosine",
    "optim.lr_warmup_steps_ratio": 0.1,
}
"""Defaults of verl.trainer.fsdp_sft_trainer: sft_trainer.yaml of verl 0.6."""
OLDER_NAMES = {
    "optim.lr_decay_style": ("optim.lr_scheduler",),
    "optim.lr_warmup_steps_ratio": ("optim.warmup_steps_ratio",),
}
FSDP_ROWS = tuple(
    replace(row, default=OF_2025.get(row.key, row.default), also=(*row.also, *OLDER_NAMES.get(row.key, ())))
    for row in ROWS
)
FSDP_SFT = System("verl, SFT on FSDP", FSDP_ROWS, RULES, "verl 005a83db8 of 2025", unread)
