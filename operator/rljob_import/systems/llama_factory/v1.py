"""LLaMA-Factory's v1 form (USE_V1=1): `model`, `train_dataset` and plug-ins in sections. Defaults are its own and those of torch's AdamW."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_import.readers.hydra import UnreadableFile, flatten
from rljob_import.settings import Configuration, Settings, System
from rljob_import.shared import places
from rljob_import.shared.adapters import adapters
from rljob_import.shared.fsdp import checkpointing_row
from rljob_import.shared.megatron import RoleLayout
from rljob_import.shared.training import Length
from rljob_import.shared.values import LLAMA_FACTORY, place
from rljob_import.table import Field, Note, Outcome, Problem, Said, becomes, implied, lacks, must, read

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
    read("batching_strategy", "", "normal", text="samples are always packed, and counted one by one"),
    implied("batching_workers"),
    *(implied(key, "of its chat, not of training") for key in ("sample_backend", "max_new_tokens")),
)

CHECKPOINTING = "enable_activation_checkpointing"
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
    checkpointing_row(CHECKPOINTING, True),
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


ADAMW = {"beta2": 0.999, "weightDecay": 0.01}
"""torch's defaults where they are not ours."""
FORMATS = {"alpaca": "alpaca", "sharegpt": "sharegpt", "openai": "messages"}
"""Of rows, by a data set's converter."""
COMMANDS = {"train": "sft", "sft": "sft", "dpo": "dpo", "rm": "rewardModel"}
PAIRS = ("dpo", "rewardModel")


def is_v1(tree: Mapping[str, Any]) -> bool:
    return "train_dataset" in tree or ("model" in tree and bool(tree.keys() & {"model_class", "peft_config"}))


def task(settings: Settings) -> str:
    """As the command that the file is started with; without it, `cls` is a reward model, and dpo has settings of its own."""
    command = COMMANDS.get(settings.options.environment.get("COMMAND", ""))
    if command:
        return command
    if settings["model_class"] == "cls":
        return "rewardModel"
    return "dpo" if any(key in settings for key in PREFERENCES) else "sft"


def model(settings: Settings) -> Iterator[Said]:
    if "model" not in settings:
        yield Problem("model", "is missing")
    ours, command = task(settings), settings.options.environment.get("COMMAND")
    if command is not None and command not in COMMANDS:
        yield Problem("--env COMMAND", f"{command}: write one of {', '.join(COMMANDS)}")
    yield settings.field("task", ours, *([key for key in PREFERENCES if key in settings] or ["model_class"]))
    if ours == "sft" and command is None:
        yield Note(Outcome.CHANGED, "task", "sft: --env COMMAND=dpo where `llamafactory-cli dpo` reads the file")
    yield from places.located(settings, "model.path", "model")
    if "template" in settings:
        yield settings.changed("template", "the tokenizer's chat template, whose text may differ")
    yield settings.field("model.dtype", "bfloat16" if settings["bf16"] else "float32", "bf16")


def tuning(settings: Settings) -> Iterator[Said]:
    name, keys = settings["peft_config.name"], [f"peft_config.{key}" for key in ("r", "lora_alpha", "target_modules")]
    if name == "lora":
        numbers = settings.integer(keys[0]), settings.integer(keys[1])
        yield from adapters(settings, keys[0], keys[1], keys[2], numbers, "peft_config.adapter_name_or_path")
    elif name is not None:
        yield settings.changed("peft_config.name", "all parameters are trained")


def data(settings: Settings) -> Iterator[Said]:
    if "train_dataset" not in settings:
        yield Problem("train_dataset", "is missing")
        return
    sets = settings.options.data_sets
    for key, field in (("train_dataset", "data.train"), ("eval_dataset", "data.validation")):
        listed = str(settings[key]).endswith((".yaml", ".yml"))
        if listed and (key != "train_dataset" or not sets):
            fix = "give it with --dataset-info, or name a file here" if key == "train_dataset" else "name a file here"
            yield settings.problem(f"{settings[key]} names data sets: {fix}", key)
        elif listed:
            yield from _sets(settings, field, sets)
        elif key in settings:
            yield from places.files(settings, field, key)
    if task(settings) == "sft":
        text = "a conversation is one sample, all of whose assistant turns are learnt from; there each turn is one"
        yield settings.changed("train_dataset", text)
        yield Field("data.overlong", "cut", "cutoff_len: longer ones are cut there", settings.names("cutoff_len"))


def _sets(settings: Settings, field: str, sets: Mapping[str, Any]) -> Iterator[Said]:
    """All that are in the file of --dataset-info."""
    wrong = [name for name, one in sets.items() if not isinstance(one, dict) or "path" not in one]
    if wrong:
        yield Problem("--dataset-info", f"{wrong[0]} has no path: give the file that train_dataset names")
        return
    files = [
        str(one["path"])
        if one.get("source", "hf_hub") == "local"
        else f"{one['path']}/{one.get('split', 'train')}.parquet"
        for one in sets.values()
    ]
    there = [place(file, settings.options.root) for file in files]
    yield settings.field(field, there, "train_dataset", why=f"--dataset-info: {', '.join(sets)}")
    yield settings.changed("train_dataset", f"put on the volume of --claim, at {', '.join(there)}")
    converters = {one.get("converter") for one in sets.values()}
    form = FORMATS.get(str(*converters)) if len(converters) == 1 else None
    if form and task(settings) not in PAIRS:
        yield Field("data.format", form, "--dataset-info: converter")
    for name, one in sets.items():
        for key in ("size", "weight"):
            if key in one:
                yield Note(
                    Outcome.LACKING,
                    f"{name}.{key} = {one[key]}",
                    "all rows are used; data.weights are shares of samples",
                )


def machine(settings: Settings) -> tuple[int, int, RoleLayout]:
    """Nodes, GPUs of each, and what a copy of the model takes; where nothing says it, as few as hold the layout."""
    layout = RoleLayout(1, 1, settings.integer("cp_size"), settings.integer("dist_config.ep_size"))
    least, options = math.lcm(layout.context, layout.expert), settings.options
    per_node = options.gpus_per_node or next(size for size in range(8, 0, -1) if least % size == 0)
    return options.nodes or math.lcm(least, per_node) // per_node, per_node, layout


def amounts(settings: Settings) -> Iterator[Said]:
    nodes, gpus, layout = machine(settings)
    source = (
        "--nodes, --gpus-per-node"
        if settings.options.nodes or settings.options.gpus_per_node
        else "the least that holds the layout: see --nodes, --gpus-per-node"
    )
    yield Field("trainer.nodes", nodes, source)
    yield Field("trainer.processesPerNode", gpus, source)
    copies, each = max(1, nodes * gpus // layout.copy), settings.integer("micro_batch_size")
    given = "global_batch_size" in settings
    batch = settings.integer("global_batch_size") if given else each * copies
    keys = ("global_batch_size",) if given else ("micro_batch_size",)
    yield settings.field("train.samplesPerStep", batch, *keys, why="" if given else f"x {copies} data-parallel ranks")
    if str(settings["batching_strategy"]).startswith("dynamic"):
        text = "a step has as many samples as global_batch_size says; there as many as fit into that many times cutoff_len tokens"
        yield settings.changed("batching_strategy", f"{text}: raise train.samplesPerStep")
    longest = layout.aligned(settings.integer("cutoff_len")) * (2 if task(settings) in PAIRS else 1)
    yield settings.field("train.tokensPerMicroBatch", each * longest, "micro_batch_size", "cutoff_len")
    yield from Length("max_steps", "num_train_epochs", batch).said(settings)
    if settings[CHECKPOINTING]:
        text = "whole layers are computed again"
        yield settings.field("trainer.recompute.granularity", "full", CHECKPOINTING, why=text)
    for name, value in ADAMW.items():
        yield Field(f"train.optimizer.{name}", value, "default of torch's AdamW", assumed=True)


def preferences(settings: Settings) -> Iterator[Said]:
    if task(settings) == "dpo":
        yield settings.field("dpo.loss", settings["pref_loss"], "pref_loss")
        if settings["pref_loss"] == "simpo":
            yield settings.field("dpo.margin", settings.number("simpo_gamma"), "simpo_gamma")


def output(settings: Settings) -> Iterator[Said]:
    directory = settings["output_dir"] or "outputs/llamafactory"
    yield from places.written(settings, "checkpoint.path", "output_dir", directory)
    yield from places.named(settings, "output_dir", str(directory).rstrip("/").split("/")[-1:])
    every = settings.integer("save_steps") if "save_steps" in settings else 0
    yield settings.field("checkpoint.everySteps", every, "save_steps", why="" if every else "only at the end")
    if settings["save_ckpt_as_hf"] and every:
        yield settings.field("checkpoint.exportEverySteps", every, "save_ckpt_as_hf", "save_steps")
    yield from places.kept(settings, "save_total_limit")


def unread(settings: Settings) -> dict[str, str]:
    why = {} if task(settings) == "dpo" else {"dpo": "read by dpo only"}
    if task(settings) == "rewardModel":
        why["model.lora"] = "a reward model is trained whole"
    return why


LLAMA_FACTORY_V1 = System(
    "LLaMA-Factory, v1", ROWS, (model, tuning, data, amounts, preferences, output, places.pods), LLAMA_FACTORY, unread
)


def source(tree: Mapping[str, Any]) -> Configuration:
    """Raises Unreadable of a file that trains nothing."""
    values = flatten(tree)
    if "peft_config.export_dir" in values:
        raise UnreadableFile("merges a model, and trains nothing: checkpoints of an RLJob are whole models")
    return Configuration(LLAMA_FACTORY_V1, values)
