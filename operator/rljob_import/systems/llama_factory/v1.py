"""LLaMA-Factory's v1 form (USE_V1=1): `model`, `train_dataset` and plug-ins in sections. Defaults are its own and those of torch's AdamW."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_import.readers.trees import Unreadable, flatten
from rljob_import.settings import Settings, Source, System
from rljob_import.shared import places
from rljob_import.shared.adapters import adapters
from rljob_import.shared.amounts import Length
from rljob_import.shared.megatron import Layout
from rljob_import.shared.values import LLAMA_FACTORY, place
from rljob_import.systems.llama_factory.v1_rows import PREFERENCES, ROWS
from rljob_import.table import Field, Note, Outcome, Problem, Said

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
    if command := COMMANDS.get(settings.options.environment.get("COMMAND", "")):
        return command
    if settings["model_class"] == "cls":
        return "rewardModel"
    return "dpo" if any(key in settings for key in PREFERENCES) else "sft"


def model(settings: Settings) -> Iterator[Said]:
    if "model" not in settings:
        yield Problem("model", "is missing")
    found, command = task(settings), settings.options.environment.get("COMMAND")
    if command is not None and command not in COMMANDS:
        yield Problem("--env COMMAND", f"{command}: write one of {', '.join(COMMANDS)}")
    yield settings.field("task", found, *([key for key in PREFERENCES if key in settings] or ["model_class"]))
    if found == "sft" and command is None:
        yield Note(Outcome.CHANGED, "task", "sft: --env COMMAND=dpo where `llamafactory-cli dpo` reads the file")
    yield from places.found(settings, "model.path", "model")
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
    if wrong := [name for name, one in sets.items() if not isinstance(one, dict) or "path" not in one]:
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
    if task(settings) not in PAIRS and len(converters) == 1 and (found := FORMATS.get(str(*converters))):
        yield Field("data.format", found, "--dataset-info: converter")
    for name, one in sets.items():
        for key in ("size", "weight"):
            if key in one:
                yield Note(
                    Outcome.LACKING,
                    f"{name}.{key} = {one[key]}",
                    "all rows are used; data.weights are shares of samples",
                )


def machine(settings: Settings) -> tuple[int, int, Layout]:
    """Nodes, GPUs of each, and what a copy of the model takes; where nothing says it, as few as hold the layout."""
    layout = Layout(1, 1, settings.integer("cp_size"), settings.integer("dist_config.ep_size"))
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
    longest = layout.aligned(settings.integer("cutoff_len")) * (2 if task(settings) in PAIRS else 1)
    yield settings.field("train.tokensPerMicroBatch", each * longest, "micro_batch_size", "cutoff_len")
    yield from Length("max_steps", "num_train_epochs", batch).said(settings)
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
    found = {} if task(settings) == "dpo" else {"dpo": "read by dpo only"}
    if task(settings) == "rewardModel":
        found["model.lora"] = "a reward model is trained whole"
    return found


LLAMA_FACTORY_V1 = System(
    "LLaMA-Factory, v1", ROWS, (model, tuning, data, amounts, preferences, output, places.pods), LLAMA_FACTORY, unread
)


def source(tree: Mapping[str, Any]) -> Source:
    """Raises Unreadable of a file that trains nothing."""
    values = flatten(tree)
    if "peft_config.export_dir" in values:
        raise Unreadable("merges a model, and trains nothing: checkpoints of an RLJob are whole models")
    return Source(LLAMA_FACTORY_V1, values)
