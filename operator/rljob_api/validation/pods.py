"""What a job's author may not say about its pods: volumes that the restricted standard forbids, and names that are ours. See docs/security.md."""

from collections.abc import Callable, Iterable, Iterator

from rljob_api import names
from rljob_api.quantity import parse
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template
from rljob_api.validation.violation import Violation

SOURCES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
"""Volumes of the restricted Pod Security standard; hostPath above all is not among them."""
OUR_VOLUMES = "rljob-"
OUR_MOUNTS = (names.WORK_DIR, "/tmp", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount")


def volume_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for i, volume in enumerate(spec.volumes):
        field = f"spec.volumes[{i}]"
        if len(volume.source) != 1 or next(iter(volume.source)) not in SOURCES:
            yield Violation(
                f"{field}.source",
                ", ".join(volume.source) or "{}",
                "needs exactly one kind of volume that the restricted Pod Security standard allows",
                f"use one of {', '.join(SOURCES)}",
            )
        if volume.name.startswith(OUR_VOLUMES):
            yield Violation(f"{field}.name", volume.name, f"`{OUR_VOLUMES}` begins names of rljob's", "rename it")
        if volume.mount_path.rstrip("/") in OUR_MOUNTS:
            yield Violation(f"{field}.mountPath", volume.mount_path, "is a mount of rljob's", "choose another path")
    yield from _twice("name", [v.name for v in spec.volumes])
    yield from _twice("mountPath", [v.mount_path.rstrip("/") for v in spec.volumes])


def _twice(field: str, values: list[str]) -> Iterator[Violation]:
    for i, value in enumerate(values):
        if value in values[:i]:
            yield Violation(f"spec.volumes[{i}].{field}", value, "stands twice", "every volume has its own")


def templates(spec: RLJobSpec) -> Iterator[tuple[str, Template]]:
    """By role."""
    return ((role, spec.template(role)) for role in names.ROLES)


def metadata_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Labels and annotations by which operator and admission policies tell pods apart."""
    for role, given in templates(spec):
        for kind, entries in (("labels", given.labels), ("annotations", given.annotations)):
            for key in entries:
                if key == names.LABEL_MANAGED_BY or key.split("/")[0] == names.GROUP:
                    yield Violation(f"spec.{role}.template.{kind}.{key}", entries[key], "is rljob's own", "take it out")


def resource_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Devices follow from the processes, and no request is above its limit."""
    for role, given in templates(spec):
        field, resources, device = f"spec.{role}.template.resources", given.resources, spec.trainer.resource_name
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            if spec.trainer.device == "gpu" and device in amounts:
                size = "spec.trainer.processesPerNode" if role == names.ROLE_TRAINER else "spec.rollout.tensorParallel"
                yield Violation(f"{field}.{kind}.{device}", amounts[device], f"is set by {size}", "take it out")
        for name in resources.requests.keys() & resources.limits.keys():
            request, limit = resources.requests[name], resources.limits[name]
            if parse(request) > parse(limit):
                rule = f"is above {field}.limits.{name} = {limit}"
                yield Violation(f"{field}.requests.{name}", request, rule, "lower it, or raise the limit")


RULES: tuple[Callable[[RLJobSpec], Iterable[Violation]], ...] = (
    volume_violations,
    metadata_violations,
    resource_violations,
)
