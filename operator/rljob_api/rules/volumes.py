"""Volumes, which are those of the restricted Pod Security standard, and the paths in the pods that lead to them. See docs/security.md."""

import re
import types
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Union, get_args, get_origin

from rljob_api import names
from rljob_api.base import Model
from rljob_api.rules.engine import Check, Violation, repeated
from rljob_api.rules.fields import names_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import AbsolutePath, Volume
from rljob_api.type_errors import SENTENCES, as_written

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
CHECKPOINTS = "spec.checkpoint.path"
WRITE = "put it below the mountPath of a volume that pods may write to, without readOnly"
SHARE = "put it on a volume that all pods share, such as a persistentVolumeClaim"
SYSTEM = (
    *("/", "/app", "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys"),
    *("/usr", "/usr/bin", "/usr/lib", "/usr/local"),
)
"""Directories without whose files no image runs; a volume would hide them."""
OUR_MOUNTS = (names.WORK_DIR, "/tmp", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount")


def volume_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for i, volume in enumerate(spec.volumes):
        field = f"spec.volumes[{i}]"
        if len(volume.source) != 1 or next(iter(volume.source)) not in SOURCES:
            yield Violation(
                f"{field}.source",
                ", ".join(volume.source) or "{}",
                "needs exactly one kind of volume that the restricted Pod Security standard allows",
                f"use one of {', '.join(SOURCES)}; a claim leads to NFS, Lustre and others",
            )
        if volume.name.startswith(OUR_VOLUMES):
            yield Violation(f"{field}.name", volume.name, f"`{OUR_VOLUMES}` begins names of rljob's", "rename it")
        yield from _mount(f"{field}.mountPath", volume.mount_path)
    mounts = [v.mount_path.rstrip("/") for v in spec.volumes]
    yield from repeated("spec.volumes[{}].name", [v.name for v in spec.volumes], "every volume has its own")
    yield from repeated("spec.volumes[{}].mountPath", mounts, "every volume has its own")


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


def checkpoint_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """If the job has volumes, checkpoints have to be on one of them that all ranks share, to outlive the pods."""
    volume = volume_of(spec, spec.checkpoint.path)
    if spec.volumes and (volume is None or not volume.writable):
        rule = "is on none of the writable volumes in spec.volumes, so that checkpoints would be lost with the pod"
        yield Violation(CHECKPOINTS, spec.checkpoint.path, rule, WRITE)
    elif volume and volume.of_one_pod and _pods_with_ranks(spec) > 1:
        rule = f"is on the volume {volume.name}, of which every pod has one of its own: no checkpoint would be whole"
        yield Violation(CHECKPOINTS, spec.checkpoint.path, rule, SHARE)


def resume_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The checkpoint of a first attempt is one step's, on one of the volumes if there are any."""
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


def _pods_with_ranks(spec: RLJobSpec) -> int:
    """Pods of the trainer, its spares, and further gangs: a checkpoint is of all of them."""
    return sum(spec.gang_sizes.values()) + spec.scheduling.spare_nodes


def unfetched(volume: Volume | None, spec: RLJobSpec) -> str:
    """Why files that one pod copies to a volume do not reach the others; empty: they do."""
    alone = {*spec.workers, *(names.sandbox_role(i) for i in range(len(spec.environments)))}
    pods = sum(count for role, count in spec.pod_counts.items() if role not in alone)
    if volume is None or not volume.of_one_pod or pods == 1:
        return ""
    return f"is on the volume {volume.name}, of which every pod has one of its own: the others would wait for files that one has copied"


def volume_of(spec: RLJobSpec, path: str) -> Volume | None:
    """The volume that holds a path: the innermost, if mounts are nested."""
    around = [v for v in spec.volumes if PurePosixPath(path).is_relative_to(v.mount_path)]
    return max(around, key=lambda v: len(PurePosixPath(v.mount_path).parts), default=None)


def volumes_of(spec: RLJobSpec, role: str) -> list[Volume]:
    """The volumes of a role's pods: only a gateway has the one with the keys of clients."""
    keys = spec.service.keys
    secret = volume_of(spec, keys) if keys and role != names.ROLE_GATEWAY else None
    return [volume for volume in spec.volumes if volume is not secret]


PATH = get_args(AbsolutePath)[1:]
"""What marks a field as a path in the pods."""


def parent_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A path that goes up leads to another volume than its beginning says."""
    for field, path in paths(spec):
        if ".." in PurePosixPath(path).parts:
            yield Violation(
                field, path, "goes up by `..`, out of the directory that it names", "write the path without it"
            )


def unmounted_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """If the job has volumes, weights in Megatron's format are on one of them: an image may hold a model, but no such checkpoint."""
    for field, path in outside_volumes(spec).items() if spec.volumes else ():
        if field.endswith(".megatronCheckpoint"):
            fix = "put it below a mountPath, or mount the volume that holds it"
            yield Violation(field, path, "is on none of spec.volumes", fix)


def outside_volumes(spec: RLJobSpec) -> dict[str, str]:
    """Fields whose paths are on no volume, so that the image has to hold them."""
    return {field: path for field, path in paths(spec) if volume_of(spec, path) is None}


def lost_checkpoints(spec: RLJobSpec) -> Iterator[Violation]:
    """Of a job without any volume, or with one that ends with its only pod. It breaks no rule: `python -m rljob_trainer run` needs none, the
    administrator may add volumes to all pods, and a trial may not be worth a checkpoint."""
    volume = volume_of(spec, spec.checkpoint.path)
    if not spec.volumes:
        rule = "is on no volume, since spec.volumes is empty: checkpoints are lost with the pod, and its files have to be in the image"
        yield Violation(CHECKPOINTS, spec.checkpoint.path, rule, "add the volume that holds it to spec.volumes")
    elif volume and volume.of_one_pod and _pods_with_ranks(spec) == 1:
        rule = f"is on the volume {volume.name}, which ends with its pod: no failure and no suspension can be resumed from it"
        yield Violation(CHECKPOINTS, spec.checkpoint.path, rule, SHARE)


def paths(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """All paths in the pods that a spec names, by field."""
    return _of_section(spec, "spec")


def _of_section(section: Model, at: str) -> Iterator[tuple[str, str]]:
    for name, alias, is_path in _fields(type(section)):
        yield from _of_value(getattr(section, name), f"{at}.{alias}", is_path)


@cache
def _fields(kind: type[Model]) -> tuple[tuple[str, str | None, bool], ...]:
    """Name, alias, and whether it holds paths itself, of each field with paths in it. Looked up once: every spec that is checked asks for it."""
    known, fields = names_of(kind), list[tuple[str, str | None, bool]]()
    for name, field in kind.model_fields.items():
        is_path, inner = _holds_paths((field.annotation, *field.metadata)), known[str(field.alias)]
        if is_path or (inner and _fields(inner)):
            fields.append((name, field.alias, is_path))
    return tuple(fields)


def _of_value(value: Any, at: str, is_path: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, Model):
        yield from _of_section(value, at)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _of_value(inner, f"{at}[{i}]", is_path)
    elif is_path and isinstance(value, str):
        yield at, value


def _holds_paths(annotations: tuple[Any, ...]) -> bool:
    """Whether a field is an AbsolutePath, or a list of some, or may be unset."""
    inner = (
        part for a in annotations if get_origin(a) in (Annotated, Union, types.UnionType, list) for part in get_args(a)
    )
    return any(a in PATH for a in annotations) or any(_holds_paths((part,)) for part in inner)


RULES: tuple[Check, ...] = (
    volume_violations,
    volume_source_violations,
    checkpoint_violations,
    resume_violations,
    parent_violations,
    unmounted_violations,
)
