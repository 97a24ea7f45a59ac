"""LLaMA-Factory: flat YAML; `stage` sft, dpo, rm and pt are tasks of an RLJob. Defaults are its own and those of transformers."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.spec.run import LifecycleSpec
from rljob_import.readers.hydra import UnreadableFile, plain, tree_of
from rljob_import.settings import Configuration, Settings, System, show
from rljob_import.shared import places, values
from rljob_import.shared.adapters import adapters
from rljob_import.shared.fsdp import checkpointed, other_trainer
from rljob_import.shared.megatron import (
    RoleLayout,
    recompute,
    transformer_config,
    virtual_pipeline,
)
from rljob_import.shared.training import Length, Warmup
from rljob_import.shared.values import items, place, product
from rljob_import.systems.llama_factory import v1
from rljob_import.systems.llama_factory.rows import ROWS, SFT_LOSSES
from rljob_import.systems.llama_factory.sets import HUBS, PAIRS, described
from rljob_import.table import Field, Problem, Said

LOSSES = ("sigmoid", "ipo", "hinge", "simpo", "orpo")
TASKS = {"sft": "sft", "dpo": "dpo", "rm": "rewardModel", "pt": "pretrain"}
OTHER_FILES = {
    "compute_environment": "configures accelerate: import the file that names model and dataset",
    "distributed_type": "configures accelerate: import the file that names model and dataset",
    "export_dir": "merges or quantises a model, and trains nothing: checkpoints of an RLJob are whole models",
    "infer_backend": "configures a server, and trains nothing",
}
"""By a key that only such files have."""
WITHOUT_REFERENCE = ("simpo", "orpo")


def stage(settings: Settings) -> Iterator[Said]:
    if settings["stage"] not in TASKS:
        yield settings.problem(f"{settings['stage']} is no task of an RLJob; {', '.join(TASKS)} are", "stage")
    else:
        yield settings.field("task", TASKS[settings["stage"]], "stage")
    if "model_name_or_path" not in settings:
        yield Problem("model_name_or_path", "is missing")
    yield from places.located(settings, "model.path", "model_name_or_path")
    if "megatron_pretrained_checkpoint" in settings:
        yield from places.located(settings, "model.megatronCheckpoint", "megatron_pretrained_checkpoint")
    if settings["stage"] != "pt" and "template" in settings:
        yield settings.changed("template", "the tokenizer's chat template, whose text may differ")
    if "bf16" in settings:
        yield settings.field("model.dtype", "bfloat16" if settings["bf16"] else "float32", "bf16")


def tuning(settings: Settings) -> Iterator[Said]:
    if settings["stage"] == "rm" and settings["finetuning_type"] == "lora":
        text = (
            "a reward model is trained whole here: write finetuning_type: full, and a learning rate for all parameters"
        )
        yield settings.problem(text, "finetuning_type")
    elif settings["finetuning_type"] == "lora":
        rank = settings.integer("lora_rank")
        alpha = settings.integer("lora_alpha") if "lora_alpha" in settings else 2 * rank
        if settings["use_rslora"]:
            exact = alpha * math.sqrt(rank)
            alpha = max(1, round(exact))
            text = f"alpha is divided by the rank here, and by its root there: {exact:.6g} has the same effect"
            yield settings.changed("use_rslora", f"{text}, and model.lora.alpha is {alpha}")
        yield from adapters(settings, "lora_rank", "lora_alpha", "lora_target", (rank, alpha), "adapter_name_or_path")
    elif settings["finetuning_type"] != "full":
        yield settings.changed("finetuning_type", "all parameters are trained")


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
    held_out = _names(settings["eval_dataset"]) if "eval_dataset" in settings else []
    yield from described(settings, _names(settings["dataset"]), held_out)
    yield from images(settings)
    if settings["train_on_prompt"] or settings["mask_history"]:
        key = "train_on_prompt" if settings["train_on_prompt"] else "mask_history"
        yield settings.field("data.lossOn", "all" if settings["train_on_prompt"] else "lastAssistant", key)
    for key in SFT_LOSSES:
        if settings[key]:
            yield settings.problem("the loss of sft is the cross-entropy: remove it, or train elsewhere", key)
    if settings["stage"] == "sft":
        yield Field("data.overlong", "cut", "cutoff_len: longer ones are cut there", settings.names("cutoff_len"))
    elif "cutoff_len" in settings and settings["stage"] in ("dpo", "rm"):
        yield settings.changed("cutoff_len", "longer pairs are left out, not cut")
    if "interleave_probs" in settings:
        yield settings.field(
            "data.weights", [float(p) for p in _names(settings["interleave_probs"])], "interleave_probs"
        )


def images(settings: Settings) -> Iterator[Said]:
    """Which column they are in, and what learns not: the tower and its projector, unless the file says otherwise."""
    column = settings.options.data_sets.get(_names(settings["dataset"])[0], {}).get("columns", {}).get("images")
    if column and settings["stage"] == "sft":
        yield Field("data.imageKey", column, f"--dataset-info: {_names(settings['dataset'])[0]}")
    parts = {"vision": "freeze_vision_tower", "projector": "freeze_multi_modal_projector"}
    if column or any(key in settings for key in parts.values()):
        yield settings.field("model.freeze", [part for part, key in parts.items() if settings[key]], *parts.values())


def _names(value: Any) -> list[str]:
    return [name.strip() for one in items(value) for name in str(one).split(",")]


def _file(settings: Settings, name: str) -> str:
    """Of a data set: by dataset_info.json, else as its name says."""
    entry = settings.options.data_sets.get(name, {})
    hub = next((entry[key] for key in HUBS if entry.get(key)), None)
    if entry.get("file_name") or not hub:
        file = f"{settings['dataset_dir']}/{entry.get('file_name') or f'{name}.json'}"
    else:
        file = f"{hub}/{entry.get('split', 'train')}.parquet"
    return place(file, settings.options.root)


def machine(settings: Settings) -> tuple[int, int]:
    """Nodes, and GPUs of each: of the command line, else as few as hold the layout."""
    layout, options = RoleLayout.of(settings, ""), settings.options
    ranks = layout.copy
    while ranks % (layout.pipeline * layout.expert):
        ranks += layout.copy
    per_node = options.gpus_per_node or min(8, ranks)
    return options.nodes or max(1, ranks // per_node), per_node


def amounts(settings: Settings) -> Iterator[Said]:
    nodes, gpus = machine(settings)
    layout, options = RoleLayout.of(settings, ""), settings.options
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
    yield from packs(settings)
    longest = layout.aligned(settings.integer("cutoff_len")) * (2 if settings["stage"] in PAIRS else 1)
    yield settings.field("train.tokensPerMicroBatch", each * longest, keys[0], "cutoff_len")
    length = Length("max_steps", "num_train_epochs", each * steps * copies)
    yield from length.said(settings)
    yield from Warmup("warmup_steps", "warmup_ratio").said(settings, length.total(settings), 1)


def packs(settings: Settings) -> Iterator[Said]:
    """What a sample of a batch is: there conversations up to cutoff_len tokens, where they are packed."""
    key = next((key for key in ("neat_packing", "packing") if settings[key]), None)
    if settings["stage"] == "sft" and key:
        text = "a sample is one conversation here, and there as many as fit into cutoff_len tokens"
        yield settings.changed(key, f"{text}: multiply train.samplesPerStep, and divide train.steps, by their number")
    elif settings["stage"] == "pt" and "packing" in settings and not settings["packing"]:
        yield settings.changed("packing", "documents are packed into sequences of data.maxTokens")


def schedule(settings: Settings) -> Iterator[Said]:
    """The rate at the end of transformers' cosine with a least rate, and what else its schedules take."""
    key, ends = "lr_scheduler_kwargs", settings["lr_scheduler_type"] == "cosine_with_min_lr"
    given = dict(settings[key] or {})
    rate, share = given.pop("min_lr", None), given.pop("min_lr_rate", None)
    if ends and rate is None and share is None:
        yield settings.problem("needs min_lr or min_lr_rate in lr_scheduler_kwargs", "lr_scheduler_type")
    elif ends:
        low = values.real(rate) if rate is not None else product(values.real(share), settings.number("learning_rate"))
        yield settings.field("train.optimizer.minLearningRate", low, key)
    elif rate is not None or share is not None:
        yield settings.lacking(key, f"{settings['lr_scheduler_type']} has no least rate: see cosine_with_min_lr")
    if given:
        yield settings.lacking(key, f"schedules have no {', '.join(given)}")


def layout(settings: Settings) -> Iterator[Said]:
    if not settings["use_mca"]:
        key = "disable_gradient_checkpointing"
        yield other_trainer(settings, "deepspeed" if "deepspeed" in settings else "use_mca")
        yield from checkpointed(settings, key, not settings[key], "")
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
            yield settings.problem(f"{show(loss)} is none of {', '.join(LOSSES)}", "pref_loss")
        yield settings.field("dpo.loss", loss if loss in LOSSES else None, "pref_loss")
        if loss == "simpo":
            yield settings.field("dpo.margin", settings.number("simpo_gamma"), "simpo_gamma")
    if "ref_model" in settings:
        yield from places.located(settings, "reference.path", "ref_model")


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
    why = {} if task == "dpo" else {"dpo": "read by stage dpo only"}
    if task not in ("sft", "pt"):
        why["sft"] = "read by stages sft and pt only"
    if task != "sft":
        why["data.lossOn"] = "read by stage sft only"
    if task != "dpo" or settings["pref_loss"] in WITHOUT_REFERENCE:
        why["reference"] = "no reference is held"
    return why


LLAMA_FACTORY = System(
    "LLaMA-Factory",
    ROWS,
    (stage, tuning, data, amounts, schedule, layout, preferences, output, places.pods),
    values.LLAMA_FACTORY,
    unread,
)


def read_file(text: str, environment: Mapping[str, str]) -> Configuration:
    """Flat YAML, or that of v1. Raises Unreadable, also of files that train nothing."""
    tree = tree_of(text)
    if v1.is_v1(tree):
        return v1.source(tree)
    other = next((purpose for key, purpose in OTHER_FILES.items() if key in tree), "")
    if other:
        raise UnreadableFile(other)
    return Configuration(LLAMA_FACTORY, {k: plain(v) for k, v in tree.items()})
