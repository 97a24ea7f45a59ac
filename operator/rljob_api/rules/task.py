"""What the job learns from, and how long; and which task reads which field. A field that the task does not read has to have its default: otherwise
somebody relies on a setting without effect.

And a service's clients: where their keys are, and whose limits are whose.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from rljob_api.base import Model
from rljob_api.rules.engine import (
    AGENT,
    RL,
    SERVICE,
    TEACHER,
    Check,
    Rule,
    Violation,
    as_given,
    count,
    field,
    present,
    repeated,
    size,
)
from rljob_api.rules.volumes import paths, volume_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import Task
from rljob_api.spec.roles import ReferenceSpec

OBJECT_RULES = (
    Rule(
        "rewards",
        RL.implies((size("rewards") > 0) | AGENT | TEACHER),
        "without a reward or a teacher nothing tells good responses from bad ones",
        "name at least one, for example [{rule: exactMatch}], or set spec.algorithm.distillation, or another spec.task",
        value="[]",
    ),
    Rule(
        "rewards",
        RL | size("rewards").equals(0),
        "{0} learns from its data alone and generates nothing that could be rewarded",
        "remove them, or set spec.task: rl",
        (field("task"),),
        "set",
    ),
    Rule(
        "train.steps",
        SERVICE | count((present("train.steps"), present("train.epochs"))).equals(1),
        "the length of the job is given by exactly one of steps and epochs",
        "set spec.train.steps or spec.train.epochs, and remove the other",
        value=lambda spec: "none" if spec.train.steps is None else "both",
    ),
    Rule(
        "data.train",
        SERVICE | (size("data.train") > 0),
        "{0} learns from files",
        "name at least one",
        (field("task"),),
        "[]",
    ),
)

SUPERVISED: tuple[Task, ...] = ("sft", "dpo", "rewardModel", "pretrain")
CONVERSATIONS: tuple[Task, ...] = ("sft", "dpo", "rewardModel")
PAIRS: tuple[Task, ...] = ("dpo", "rewardModel")
LEARNING: tuple[Task, ...] = ("rl", *SUPERVISED)
"""Tasks with a loop of their own, which know how much there is to do."""
GENERATING: tuple[Task, ...] = ("rl", "service")

SAVING = (
    *("everySteps", "keepLast", "resume", "resumeFrom", "asynchronous"),
    *("upload", "exportEverySteps", "keepExports", "exportHuggingFace"),
)
"""How a loop's checkpoints are written; a service has those of its clients."""

READERS: dict[str, tuple[Task, ...]] = {
    "model.megatronCheckpoint": ("rl", "sft", "dpo", "pretrain"),
    "model.multiTokenPrediction": ("rl", "sft", "dpo", "pretrain"),
    "model.lora": ("rl", "sft", "dpo", "pretrain"),
    "data.custom": ("rl", *CONVERSATIONS),
    "data.format": SUPERVISED,
    "data.promptKey": ("rl", *CONVERSATIONS),
    "data.responseKey": ("sft",),
    "data.messagesKey": CONVERSATIONS,
    "data.chosenKey": PAIRS,
    "data.rejectedKey": PAIRS,
    "data.textKey": ("pretrain",),
    "data.chatTemplate": ("rl", *CONVERSATIONS),
    "data.imageKey": ("rl", "sft"),
    "data.answerKey": ("rl",),
    "data.dataSourceKey": ("rl",),
    "data.maxPromptTokens": ("rl",),
    "data.maxTokens": SUPERVISED,
    "data.generated": ("rl",),
    "data.overlong": ("sft",),
    "data.lossOn": ("sft",),
    "algorithm": ("rl",),
    "sft": ("sft", "pretrain"),
    "dpo": ("dpo",),
    "train.samplesPerStep": SUPERVISED,
    "train.promptsPerStep": ("rl",),
    "train.samplesPerPrompt": ("rl",),
    "train.epochsPerStep": ("rl",),
    "train.staleness": ("rl",),
    "train.overSampling": ("rl",),
    "train.partialRollouts": ("rl",),
    "train.batches": ("rl",),
    "evaluation.samplesPerPrompt": ("rl",),
    "evaluation.sampling": ("rl",),
    "evaluation.sets": ("rl",),
    "evaluation.correctAbove": ("rl",),
    "critic": ("rl",),
    "reference": ("rl", "dpo"),
    "rollout.placement": ("rl",),
    "rollout.serversPerGpu": ("rl",),
    "rollout.minReplicas": ("rl",),
    "rollout.nodes": GENERATING,
    "rollout.tensorParallel": GENERATING,
    "rollout.pipelineParallel": GENERATING,
    "rollout.dataParallel": ("rl",),
    "rollout.expertParallel": GENERATING,
    "rollout.interrupt": ("rl",),
    "rollout.sampling": ("rl",),
    "rollout.agent": ("rl",),
    "rollout.speculation": ("rl",),
    "rollout.exact": ("rl",),
    "rollout.vllmArgs": GENERATING,
    "rollout.shmSize": GENERATING,
    "rollout.template": GENERATING,
    "pools": ("rl",),
    "environments": ("rl",),
    "service": ("service",),
    "model.source": LEARNING,
    **dict.fromkeys(
        (f"data.{name}" for name in ("train", "validation", "sources", "weights", "shuffle", "seed")), LEARNING
    ),
    **dict.fromkeys(
        (f"train.{name}" for name in ("steps", "epochs", "miniBatches", "optimizer", "onNonFinite")), LEARNING
    ),
    **dict.fromkeys((f"evaluation.{name}" for name in ("everySteps", "only")), LEARNING),
    **dict.fromkeys((f"checkpoint.{name}" for name in SAVING), LEARNING),
    **dict.fromkeys((f"trainer.{name}" for name in ("overlap", "offload")), LEARNING),
}
"""Tasks that read a field. Fields that are not here are read by all; `rewards` and `rollout.replicas` have rules of their own."""


def unread_violations(path: str, spec: RLJobSpec) -> Iterator[Violation]:
    """A field that the job's task does not read."""
    if spec.task in READERS[path]:
        return
    tasks, value = READERS[path], field(path).of(spec)
    if value != _default(spec, path):
        yield Violation(
            f"spec.{path}",
            _shown(value),
            f"task {spec.task} does not read it, only {' and '.join(tasks)}",
            "remove it, or set another spec.task",
        )


def read_by_task(spec: RLJobSpec) -> dict[str, Any]:
    """The spec without the fields of other tasks."""
    read: dict[str, Any] = spec.dump()
    for path, tasks in READERS.items():
        section, _, name = path.rpartition(".")
        if spec.task not in tasks:
            below: dict[str, Any] = read.get(section, {}) if section else read
            below.pop(name, None)
    return read


def _default(spec: RLJobSpec, path: str) -> Any:
    """The default of a field of the spec or of one of its sections."""
    section, _, name = path.rpartition(".")
    owner = type(field(section).of(spec)) if section else RLJobSpec
    return next(info.default for info in owner.model_fields.values() if info.alias == name)


def dpo_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Options of spec.dpo that its loss does not read."""
    d = spec.dpo
    if d.label_smoothing and d.loss != "sigmoid":
        yield _of_another_loss("labelSmoothing", d.label_smoothing, d.loss, "sigmoid")
    if d.margin and d.loss != "simpo":
        yield _of_another_loss("margin", d.margin, d.loss, "simpo")
    if d.sft_coefficient and d.loss == "orpo":
        rule = "the loss orpo has the cross entropy of the chosen answer already"
        yield Violation("spec.dpo.sftCoefficient", f"{d.sft_coefficient:g}", rule, "remove it")
    if spec.task == "dpo" and not d.has_reference and spec.reference != ReferenceSpec():
        rule = f"the loss {d.loss} compares with no reference, and none is held"
        yield Violation("spec.reference", as_given(spec.reference), rule, "remove it, or set another spec.dpo.loss")


def _of_another_loss(name: str, value: float, loss: str, reader: str) -> Violation:
    fix = f"remove it, or set spec.dpo.loss: {reader}"
    return Violation(f"spec.dpo.{name}", f"{value:g}", f"the loss {loss} does not read it", fix)


def _shown(value: Any) -> str:
    """A value as YAML; a section without its defaults."""
    if isinstance(value, Model):
        return as_given(value)
    if isinstance(value, list) and value and isinstance(value[0], Model):
        return f"[{', '.join(map(as_given, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    *(partial(unread_violations, path) for path in READERS),
    dpo_violations,
)


OBJECT_RULES_OF_CLIENTS = (
    Rule(
        "service.clients",
        size("service.clients").equals(0) | present("service.keys"),
        "clients are known by their keys, and without spec.service.keys all who use the service are one client",
        "set spec.service.keys, or spec.service.limits in place of this",
        value=lambda spec: ", ".join(client.name for client in spec.service.clients),
    ),
    Rule(
        "service.maxModels",
        (field("service.maxRank") > 0) | field("service.maxModels").equals(1),
        "with spec.service.maxRank: 0 all parameters are trained, of one model at a time",
        "set it to 1, or spec.service.maxRank to the largest rank of adapters",
    ),
)


def keys_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The volume with the keys of clients holds nothing that other pods read."""
    keys = spec.service.keys
    if keys is None or not spec.volumes:
        return
    volume = volume_of(spec, keys)
    if volume is None:
        yield Violation("spec.service.keys", keys, "is on none of spec.volumes", "mount the Secret that holds them")
        return
    rule = f"is on the volume of spec.service.keys, {volume.name}, which only the gateway mounts"
    for where, path in paths(spec):
        own = where == "spec.service.keys" or where.startswith("spec.volumes[")
        if not own and volume_of(spec, path) is volume:
            yield Violation(where, path, rule, "give the keys a volume of their own, of a Secret")


def client_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A client's limits are found by its name."""
    named = [client.name for client in spec.service.clients]
    yield from repeated("spec.service.clients[{}].name", named, "every client has one entry")


CLIENT_RULES: tuple[Check, ...] = (*OBJECT_RULES_OF_CLIENTS, keys_violations, client_violations)
