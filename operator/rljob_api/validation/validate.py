"""Every rule that can be checked without a GPU, all at once. Called by `kubectl rljob plan`, the operator and the trainer."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template, Volume
from rljob_api.spec.roles import RolloutSpec
from rljob_api.validation import algorithm, pods, scheduling
from rljob_api.validation.layout import batch_violations, layout_violations, overlap_violations, recompute_violations
from rljob_api.validation.model import model_violations
from rljob_api.validation.passthrough import passthrough_violations
from rljob_api.validation.violation import Violation

Rule = Callable[[RLJobSpec], Iterable[Violation]]


def violations(spec: dict[str, Any], name: str, model_config: dict[str, Any] | None = None) -> list[Violation]:
    """All broken rules of a raw `spec` object of a job called `name`; with a Hugging Face `model_config`, the model's too."""
    found = list(name_violations(name))
    try:
        parsed = RLJobSpec.model_validate(spec)
    except ValidationError as error:
        return found + _schema_violations(error)
    for rule in RULES:
        found += rule(parsed)
    return found + list(model_violations(parsed, model_config or {}))


def name_violations(name: str) -> Iterator[Violation]:
    """The budget of child names: labels and StatefulSets bound the job's."""
    if len(name) > names.MAX_JOB_NAME:
        yield Violation(
            "metadata.name",
            name,
            f"has {len(name)} characters; {names.MAX_JOB_NAME} are possible, because names of children are made from it",
            "choose a shorter name",
        )
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield Violation(
            "metadata.name",
            name,
            "names of children are made from it: lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit",
            "rename the job",
        )


def rollout_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Somebody has to generate, at a temperature that training can repeat."""
    r, replay = spec.rollout, spec.train.batches.replay
    colocated = r.placement == "colocated"
    if r.replicas == 0 and not replay and not colocated:
        yield Violation(
            "spec.rollout.replicas", "0", "nothing would generate", "set at least 1, or spec.train.batches.replay"
        )
    if r.min_replicas > r.replicas and not replay and not colocated:
        yield Violation(
            "spec.rollout.minReplicas",
            str(r.min_replicas),
            f"generation would wait for ever: there are {r.replicas} replicas",
            "set at most spec.rollout.replicas",
        )
    if r.sampling.temperature == 0:
        yield Violation(
            "spec.rollout.sampling.temperature",
            "0",
            "greedy responses of one prompt are all the same, and have no log-probabilities to learn from",
            "set a temperature above 0; spec.evaluation.sampling may be greedy",
        )


def colocation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Servers on the trainer's GPUs: how many there are follows from the ranks."""
    r, t = spec.rollout, spec.trainer
    if r.placement != "colocated":
        return
    if r.replicas:
        yield Violation(
            "spec.rollout.replicas",
            str(r.replicas),
            "colocated servers are in the trainer's pods, one for every tensorParallel of its ranks",
            "set 0, or spec.rollout.placement: separate",
        )
    if r.template != Template() or r.shm_size != RolloutSpec().shm_size:
        yield Violation(
            "spec.rollout.shmSize" if r.template == Template() else "spec.rollout.template",
            "set",
            "colocated servers have no pods of their own",
            "remove it: spec.trainer's counts",
        )
    if spec.train.staleness:
        yield Violation(
            "spec.train.staleness",
            str(spec.train.staleness),
            "colocated servers sleep while the policy is trained and cannot generate the next step meanwhile",
            "set 0, or spec.rollout.placement: separate",
        )
    if t.processes_per_node % r.tensor_parallel:
        yield Violation(
            "spec.rollout.tensorParallel",
            str(r.tensor_parallel),
            f"spec.trainer.processesPerNode = {t.processes_per_node} is not divisible by it",
            f"choose a divisor of {t.processes_per_node}",
        )


def evaluation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.evaluation.every_steps and not spec.data.validation:
        yield Violation(
            "spec.evaluation.everySteps",
            str(spec.evaluation.every_steps),
            "there are no held-out prompts",
            "name files in spec.data.validation, or set 0",
        )


def environment_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Variables that rljob, torchrun, Kubernetes or the images set."""
    sections = (
        ("spec.env", spec.env),
        ("spec.trainer.template.env", spec.trainer.template.env),
        ("spec.rollout.template.env", spec.rollout.template.env),
    )
    for path, variables in sections:
        for i, v in enumerate(variables):
            if v.name in names.RESERVED_ENV or v.name.startswith(names.RESERVED_ENV_PREFIXES):
                rule = "is set by rljob, torchrun, Kubernetes or the image"
                yield Violation(f"{path}[{i}].name", v.name, rule, "choose another name")
            if v.value and v.value_from:
                yield Violation(f"{path}[{i}]", v.name, "has both a value and a valueFrom", "keep one of them")


def path_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """With volumes given, what the job writes has to outlive its pods."""
    volume = _volume(spec, spec.checkpoint.path)
    if spec.volumes and (volume is None or volume.read_only):
        yield Violation(
            "spec.checkpoint.path",
            spec.checkpoint.path,
            "is on none of the writable volumes in spec.volumes, so that checkpoints would be lost with the pod",
            "put it below a mountPath",
        )
    source = spec.checkpoint.resume_from
    if source and not re.fullmatch(r"global_step_\d+", PurePosixPath(source).name):
        yield Violation(
            "spec.checkpoint.resumeFrom",
            source,
            "a checkpoint is a directory called global_step_N",
            "name one step's directory, not the run's",
        )
    if source and spec.volumes and not _volume(spec, source):
        yield Violation(
            "spec.checkpoint.resumeFrom", source, "is on none of spec.volumes", "mount the volume that holds it"
        )


RULES: tuple[Rule, ...] = (
    layout_violations,
    overlap_violations,
    recompute_violations,
    batch_violations,
    passthrough_violations,
    *algorithm.RULES,
    *scheduling.RULES,
    rollout_violations,
    colocation_violations,
    evaluation_violations,
    environment_violations,
    *pods.RULES,
    path_violations,
)


def _volume(spec: RLJobSpec, path: str) -> Volume | None:
    """That holds a path: of several mounts, one inside the other, the innermost."""
    around = [v for v in spec.volumes if PurePosixPath(path).is_relative_to(v.mount_path)]
    return max(around, key=lambda v: len(PurePosixPath(v.mount_path).parts), default=None)


def _schema_violations(error: ValidationError) -> list[Violation]:
    return [
        Violation(_path(e["loc"]), _short(e.get("input")), e["msg"], "see `kubectl explain " + _explain(e["loc"]) + "`")
        for e in error.errors(include_url=False)
    ]


def _path(location: tuple[str | int, ...]) -> str:
    return "spec" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location)


def _explain(location: tuple[str | int, ...]) -> str:
    return ".".join(["rljob.spec", *(p for p in location[:-1] if isinstance(p, str))])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
