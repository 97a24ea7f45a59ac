"""Rules about pods: volumes that the restricted Pod Security standard forbids, and names that are rljob's. See docs/security.md."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from rljob_api import names
from rljob_api.quantity import parse
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template, Volume
from rljob_api.spec.roles import RolloutSpec
from rljob_api.type_errors import SENTENCES, as_written
from rljob_api.validation.result import Violation

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
NAMED_SOURCES = {"persistentVolumeClaim": "claimName", "secret": "secretName", "configMap": "name"}
"""Fields without which the API server would refuse the StatefulSet only later."""
SOURCE_FIELDS = ("readOnly", "items", "defaultMode", "optional")
"""What else these sources may have."""
OUR_VOLUMES = "rljob-"
SYSTEM = (
    *("/", "/app", "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys"),
    *("/usr", "/usr/bin", "/usr/lib", "/usr/local"),
)
"""Directories without whose files no image runs; a volume would hide them."""
OUR_MOUNTS = (names.WORK_DIR, "/tmp", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount")


def image_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Every role has an image. The CRD cannot check that, since the API server does not know the administrator's default."""
    if spec.image is None and any(spec.template(role).image is None for role in spec.pods):
        rule = "is not set, and no default of the cluster is known"
        yield Violation(
            "spec.image", "unset", rule, "set it, or ask the administrator of rljob for jobs.defaults.image"
        )


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
        yield from _mount(f"{field}.mountPath", volume.mount_path)
    yield from _twice("name", [v.name for v in spec.volumes])
    yield from _twice("mountPath", [v.mount_path.rstrip("/") for v in spec.volumes])


def _mount(field: str, path: str) -> Iterator[Violation]:
    where = str(PurePosixPath(path.replace("//", "/")))
    if where in OUR_MOUNTS:
        yield Violation(field, path, "is a mount of rljob's", "choose another path")
    elif where in SYSTEM:
        yield Violation(field, path, "hides files that every image needs", "choose another path, for example /data")
    elif ":" in path:
        yield Violation(field, path, "holds a colon, which the API server refuses", "choose another path")


def volume_source_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Of volumes that are made from another object: its name."""
    for i, volume in enumerate(spec.volumes):
        for kind in volume.source.keys() & NAMED_SOURCES.keys():
            yield from _source(f"spec.volumes[{i}].source.{kind}", kind, volume.source[kind])


def _source(field: str, kind: str, given: object) -> Iterator[Violation]:
    key = NAMED_SOURCES[kind]
    if not isinstance(given, dict):
        rule = "must be an object with fields of its own"
        yield Violation(field, as_written(given), rule, f"write {{{key}: {given or 'NAME'}}}")
        return
    name = given.get(key)
    if name in (None, ""):
        others = [other for other in given if other not in (key, *SOURCE_FIELDS)]
        fix = f"write {key} in place of {others[0]}" if others else f"see `kubectl explain pod.spec.volumes.{kind}`"
        yield Violation(f"{field}.{key}", "unset", "is required", fix)
    elif not isinstance(name, str):
        yield Violation(f"{field}.{key}", as_written(name), *SENTENCES["string_type"](name, {}))


def _twice(field: str, values: list[str]) -> Iterator[Violation]:
    for i, value in enumerate(values):
        if value in values[:i]:
            yield Violation(f"spec.volumes[{i}].{field}", value, "stands twice", "every volume has its own")


def templates(spec: RLJobSpec) -> Iterator[tuple[str, Template]]:
    """Templates of all roles, by the path of the role's section. Those of gangs come last, since which models have one depends on more fields, some
    of which may be unreadable."""
    yield f"spec.{names.ROLE_TRAINER}", spec.trainer.template
    yield f"spec.{names.ROLE_ROLLOUT}", spec.rollout.template
    yield from ((f"spec.pools[{i}]", pool.template) for i, pool in enumerate(spec.pools))
    yield from ((spec.field_of(role), gang.template) for role, gang in spec.gangs.items())


def metadata_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Labels and annotations by which operator and admission policies tell pods apart."""
    for field, given in templates(spec):
        for kind, entries in (("labels", given.labels), ("annotations", given.annotations)):
            for key in entries:
                if key == names.LABEL_MANAGED_BY or key.split("/")[0] == names.GROUP:
                    yield Violation(f"{field}.template.{kind}.{key}", entries[key], "is rljob's own", "take it out")


def resource_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Devices follow from the processes, and no request is above its limit."""
    for section, given in templates(spec):
        field, resources, device = f"{section}.template.resources", given.resources, spec.trainer.resource_name
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            if spec.trainer.device == "gpu" and device in amounts:
                serves = section.startswith((f"spec.{names.ROLE_ROLLOUT}", "spec.pools"))
                size = "tensorParallel" if serves else "processesPerNode"
                rule = f"is set by {section}.{size}"
                yield Violation(f"{field}.{kind}.{device}", amounts[device], rule, "take it out")
        for name in resources.requests.keys() & resources.limits.keys():
            request, limit = resources.requests[name], resources.limits[name]
            if parse(request) > parse(limit):
                rule = f"is above {field}.limits.{name} = {limit}"
                yield Violation(f"{field}.requests.{name}", request, rule, "lower it, or raise the limit")


def colocation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Colocated servers have no pods, so that nothing reads their template."""
    r, unset = spec.rollout, RolloutSpec()
    if r.placement != "colocated":
        return
    for field, given in (("template", r.template != unset.template), ("shmSize", r.shm_size != unset.shm_size)):
        if given:
            yield Violation(
                f"spec.rollout.{field}",
                "set",
                "colocated servers have no pods of their own",
                f"remove it; spec.trainer.{field} applies",
            )


def environment_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Variables that rljob, torchrun, Kubernetes or the images set."""
    sections = [("spec.env", spec.env), *((f"{field}.template.env", t.env) for field, t in templates(spec))]
    for path, variables in sections:
        for i, v in enumerate(variables):
            if v.name in names.RESERVED_ENV or v.name.startswith(names.RESERVED_ENV_PREFIXES):
                rule = "is set by rljob, torchrun, Kubernetes or the image"
                yield Violation(f"{path}[{i}].name", v.name, rule, "choose another name")
            if v.value and v.value_from:
                yield Violation(f"{path}[{i}]", v.name, "has both a value and a valueFrom", "keep one of them")


def path_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """If the job has volumes, checkpoints have to be on one of them, to outlive the pods."""
    volume = volume_of(spec, spec.checkpoint.path)
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
    if source and spec.volumes and not volume_of(spec, source):
        yield Violation(
            "spec.checkpoint.resumeFrom", source, "is on none of spec.volumes", "mount the volume that holds it"
        )


RULES = (
    image_violations,
    volume_violations,
    volume_source_violations,
    metadata_violations,
    resource_violations,
    colocation_violations,
    environment_violations,
    path_violations,
)


def volume_of(spec: RLJobSpec, path: str) -> Volume | None:
    """The volume that holds a path: the innermost, if mounts are nested."""
    around = [v for v in spec.volumes if PurePosixPath(path).is_relative_to(v.mount_path)]
    return max(around, key=lambda v: len(PurePosixPath(v.mount_path).parts), default=None)
