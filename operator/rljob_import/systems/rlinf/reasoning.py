"""RLinf: reasoning jobs (`runner.task_type: reasoning`), YAML of Hydra with resolvers of its own."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.spec.run import MOST_CHECKPOINTS, LifecycleSpec
from rljob_import.readers.hydra import UnreadableFile, flatten, plain, resolve, tree_of
from rljob_import.settings import Configuration, Settings, System, show
from rljob_import.shared import places, values
from rljob_import.shared.bases import foreign_bases
from rljob_import.shared.fsdp import checkpointed, other_trainer
from rljob_import.shared.megatron import (
    RoleLayout,
    recompute,
    transformer_config,
    virtual_pipeline,
)
from rljob_import.shared.training import Length
from rljob_import.shared.values import divisor
from rljob_import.systems.rlinf.algorithm import algorithm
from rljob_import.systems.rlinf.reasoning_rows import ROWS
from rljob_import.systems.rlinf.rows import OFFLOAD
from rljob_import.systems.rlinf.schedule import BACKEND, on_megatron, schedule
from rljob_import.table import Field, Note, Outcome, Problem, Said

WRITTEN_BY_A_CLASS = (
    ". Prompts of its sft are written by a class of RLinf's (data.dataset_name): store them as messages, and write a job of `task: sft`, with"
    " data.imageKey for pictures (docs/sft.md)"
)
HALF = ("bf16", "bfloat16", "fp16", "16", "float16")
WHOLE = ("fp32", "32", "float32")
"""How types are written; of the first, from the third on, float16."""


def sources(settings: Settings) -> Iterator[Said]:
    keys = (
        "actor.megatron.ckpt_convertor.hf_model_path",
        "actor.model.model_path",
        "rollout.model.model_path",
        "actor.tokenizer.tokenizer_model",
    )
    given = [key for key in keys if key in settings]
    if not given:
        yield Problem("rollout.model.model_path", "is missing")
        return
    yield from places.located(settings, "model.path", given[0])
    model = str(settings[given[0]]).rstrip("/")
    for key in given[1:]:
        other = str(settings[key]).rstrip("/")
        if other != model and other.rpartition("/")[2] == model.rpartition("/")[2]:
            yield settings.changed(key, f"{given[0]} holds the tokenizer too")
        elif other != model:
            text = f"{settings[key]} is another directory than {given[0]}; an RLJob has one model"
            yield settings.problem(text, key)
    if "actor.model.megatron_checkpoint" in settings:
        yield from places.located(settings, "model.megatronCheckpoint", "actor.model.megatron_checkpoint")
    yield from dtype(settings)
    yield from places.files(settings, "data.train", "data.train_data_paths")
    yield from places.files(settings, "data.validation", "data.val_data_paths")


def longest(settings: Settings) -> int:
    return settings.integer("runner.seq_length")


def response(settings: Settings) -> int:
    return longest(settings) - settings.integer("data.max_prompt_length")


def amounts(settings: Settings) -> Iterator[Said]:
    prompts, mini = settings.integer("data.rollout_batch_size"), "algorithm.n_minibatches"
    updates = divisor(prompts, settings.integer(mini))
    yield settings.field("train.miniBatches", updates, mini)
    if updates != settings[mini]:
        yield settings.changed(mini, f"{updates}: prompts are divided evenly")
    length = Length("runner.max_steps", "runner.max_epochs", prompts)
    yield from length.said(settings)
    for prefix, target in (("actor.", "train.optimizer"), ("critic.", "critic.optimizer")):
        yield from schedule(settings, prefix, target, length.total(settings), updates)
    yield settings.field(
        "rollout.sampling.maxTokens", response(settings), "runner.seq_length", "data.max_prompt_length"
    )
    yield from micro_batches(settings)


def micro_batches(settings: Settings) -> Iterator[Said]:
    least, dynamic = RoleLayout.of(settings, "actor.model.").aligned(longest(settings)), "runner.max_tokens_per_mbs"
    if settings["runner.enable_dynamic_batch_size"] and dynamic in settings:
        yield settings.field("train.tokensPerMicroBatch", max(least, settings.integer(dynamic)), dynamic)
    else:
        key = "algorithm.training_batch_size_per_gpu"
        yield settings.field(
            "train.tokensPerMicroBatch", max(least, settings.integer(key) * longest(settings)), key, "runner.seq_length"
        )


def layout(settings: Settings) -> Iterator[Said]:
    key = "actor.fsdp_config.gradient_checkpointing"
    if not on_megatron(settings):
        yield other_trainer(settings, BACKEND)
        yield from checkpointed(settings, key, bool(settings[key]), "actor.model.")
        if settings[OFFLOAD]:
            parts = ("parameters", "gradients", "optimizer")
            yield from (settings.field(f"trainer.offload.{part}", True, OFFLOAD) for part in parts)
    yield from virtual_pipeline(settings, "actor.model.")
    yield from recompute(settings, "actor.model.")
    yield from transformer_config(settings, "actor.model")
    options, per_node = settings.options, settings.options.gpus_per_node or 8
    yield (
        Field("trainer.nodes", options.nodes, "--nodes")
        if options.nodes
        else settings.field("trainer.nodes", settings.integer("cluster.num_nodes"), "cluster.num_nodes")
    )
    yield Field(
        "trainer.processesPerNode",
        per_node,
        "--gpus-per-node" if options.gpus_per_node else "assumed: see --gpus-per-node",
    )
    key = "rollout.tensor_parallel_size"
    size = divisor(per_node, min(per_node, settings.integer(key)))
    yield settings.field("rollout.tensorParallel", size, key)
    placements = {k: str(g.value) for k, g in settings.below("cluster.component_placement").items()}
    together = any("actor" in k and "rollout" in k for k in placements) or not placements
    names = tuple(f"cluster.component_placement.{k}" for k in placements)
    source = ", ".join(names) or "cluster.component_placement"
    yield Field("rollout.placement", "colocated" if together else "separate", source, names)
    if not together:
        shown = ", ".join(f"{k}: {v}" for k, v in placements.items())
        yield Note(
            Outcome.CHANGED,
            f"cluster.component_placement = {shown}",
            "choose trainer.nodes and rollout.replicas: roles on GPUs of their own",
        )
    if settings["rollout.rollout_backend"] != "vllm":
        yield settings.changed("rollout.rollout_backend", "vLLM generates")


def rewards(settings: Settings) -> Iterator[Said]:
    kind, scale = "reward.reward_type", "reward.reward_scale"
    if settings[kind] != "math":
        yield settings.lacking(kind, "math in its place; judge it with a python or http reward of your own")
    yield settings.field("rewards", [{"rule": "math"}], kind)
    grouped = settings["algorithm.adv_type"] == "grpo"
    text = "right is 1 and wrong is 0 here, not -1: " + (
        "the same advantages, which are normalised"
        if grouped
        else f"weight: {2 * settings.number(scale):g} has the same differences"
    )
    yield settings.changed(scale, text)
    if "data.answer_key" in settings:
        yield settings.changed(
            "data.answer_key", "RLinf's files may hold lists of answers there: store one answer, as text"
        )
    if settings["data.val_data_paths"]:
        yield settings.field("evaluation.sampling.maxTokens", response(settings), "runner.seq_length")


def output(settings: Settings) -> Iterator[Said]:
    name = settings["runner.experiment_name"]
    directory = f"{str(settings['runner.output_dir']).replace('../', '')}/{name}"
    yield from places.placed(settings, "checkpoint.path", directory, "runner.output_dir", "runner.experiment_name")
    yield from places.name(settings, "runner.experiment_name")
    yield Field("checkpoint.keepLast", MOST_CHECKPOINTS, "all are kept there; the most here")
    yield Note(Outcome.CHANGED, "checkpoint.keepLast", places.SPACE)
    resume = "runner.resume_dir"
    if settings[resume] not in (None, "auto"):
        yield settings.lacking(resume, "checkpoint.resumeFrom takes an RLJob's checkpoints, not RLinf's")
    minutes = "actor.megatron.distributed_timeout_minutes"
    if minutes in settings and settings.number(minutes) * 60 > LifecycleSpec().stall_timeout_seconds:
        yield settings.field("lifecycle.stallTimeoutSeconds", int(settings.number(minutes) * 60), minutes)
    loggers = settings["runner.logger.logger_backends"]
    if "wandb" in loggers:
        yield settings.field(
            "env",
            [{"name": "WANDB_PROJECT", "value": show(settings["runner.logger.project_name"])}],
            "runner.logger.logger_backends",
        )
    if {*loggers} - {"wandb", "tensorboard"}:
        yield settings.lacking("runner.logger.logger_backends", "metrics are written to TensorBoard and metrics.jsonl")


def unread(settings: Settings) -> dict[str, str]:
    why = {} if settings["algorithm.adv_type"] == "gae" else {"critic": "only advantage gae has a critic"}
    if not settings["data.val_data_paths"]:
        why["evaluation"] = "there are no held-out prompts"
    return why


def read_file(text: str, environment: Mapping[str, str]) -> Configuration:
    """YAML. Raises Unreadable, also of a task that no RLJob has."""
    tree, lost = resolve(tree_of(text), environment)
    runner = tree.get("runner")
    if not isinstance(runner, dict):
        raise UnreadableFile("has no section `runner`: it is a part that others name in their `defaults`")
    task = runner.get("task_type", "reasoning")
    if task not in ("reasoning", "math"):
        more = WRITTEN_BY_A_CLASS if task == "sft" else ""
        raise UnreadableFile(f"is of the task `{task}`; of RLinf's tasks `reasoning` is read{more}")
    values: dict[str, Any] = {k: plain(v) for k, v in flatten(tree).items()}
    return Configuration(RLINF, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])


def dtype(settings: Settings) -> Iterator[Said]:
    """With mixed precision, float32 is only what FSDP keeps its shards in: passes and generation have another type."""
    precision, rollout = "actor.model.precision", "rollout.model.precision"
    autocast = settings["actor.fsdp_config.amp_autocast.enabled"]
    mixed = (
        "actor.fsdp_config.mixed_precision.param_dtype",
        *(["actor.fsdp_config.amp_autocast.precision"] if autocast else []),
    )
    passes = next((key for key in mixed if str(settings[key]) in HALF), None)
    whole = str(settings[precision]) in WHOLE
    if str(settings[precision]) in HALF[2:]:
        yield settings.changed(precision, "bfloat16 in its place, without loss scaling")
    elif whole and passes:
        yield settings.field("model.dtype", "bfloat16", passes)
        yield settings.changed(
            precision, f"bfloat16, as {passes} says of the passes; main weights and moments are float32 in any case"
        )
        if str(settings[passes]) in HALF[2:]:
            yield settings.changed(passes, "bfloat16 in its place, without loss scaling")
    elif whole:
        yield settings.field("model.dtype", "float32", precision)
        if rollout in settings and str(settings[rollout]) not in WHOLE:
            yield settings.changed(rollout, "servers have the policy's type, float32")


OWN_BASES = re.compile(r"(.*/)?(training_backend|hybrid_engines)/[\w.-]+(@.*)?")
"""RLinf's files of defaults of FSDP and Megatron."""
RLINF = System(
    "RLinf",
    ROWS,
    (foreign_bases(OWN_BASES), sources, amounts, algorithm, layout, rewards, output, places.pods),
    values.RLINF,
    unread,
)
