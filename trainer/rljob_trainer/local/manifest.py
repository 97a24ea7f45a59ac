"""Reads an RLJob for this machine and checks all rules before any process starts: paths of its volumes become directories here, GPUs are
assigned; the files that it reads must be here.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rljob_api.base import Model, Undecidable
from rljob_api.callbacks import always
from rljob_api.manifest import ManifestError, OverrideError, read
from rljob_api.rules import readable
from rljob_api.rules.engine import Violation, lines
from rljob_api.rules.volumes import volume_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import AbsolutePath
from rljob_trainer.checkpoint.exports import newest_export
from rljob_trainer.machine import VISIBLE
from rljob_trainer.model_files import adapter_violations, model_config

WRITTEN = "spec.checkpoint.path"
STARTING_POINTS = ("spec.checkpoint.resumeFrom", "spec.model.lora.path")
"""With every megatronCheckpoint: a run that resumes reads none of them."""
MOUNTED = (
    *("model", "critic", "reference", "data", "rewards", "algorithm", "pools", "train", "evaluation", "rollout"),
    "checkpoint",
    "service",
)
"""Sections of the spec whose paths lie on volumes."""


def absent(spec: RLJobSpec, sections: tuple[str, ...], mounts: Mapping[str, str]) -> Iterator[Violation]:
    """All that is missing, as far as the spec can be read. `sections` are those whose paths are mounted. Paths of the spec are as in the manifest;
    with `mounts` they are this machine's."""
    for field, path in _paths(spec, "spec"):
        inside = field.split(".")[1].partition("[")[0] in sections
        with suppress(Undecidable):
            if inside and _read(spec, field, mounts) and not _is_fetched(spec, path):
                yield from _absent(spec, field, path, mounts)


def _is_fetched(spec: RLJobSpec, path: str) -> bool:
    """Whether the job copies or makes what is there before it reads it."""
    fetched = (*(s.path for s in spec.sources.values()), *(g.path for g in spec.data.generated))
    return any(Path(path).is_relative_to(directory) for directory in fetched)


def _absent(spec: RLJobSpec, field: str, path: str, mounts: Mapping[str, str]) -> Iterator[Violation]:
    """At most one."""
    here = on_this_machine(path, mounts)
    problem, fix = (_unwritable(here), "") if field == WRITTEN else _cannot_read(here)
    if problem:
        place, otherwise = _place(spec, path, mount_of(path, mounts))
        yield Violation(field, path, f"{problem} {place}", fix or otherwise)


def mount_of(path: str, mounts: Mapping[str, str]) -> str | None:
    """The longest of the paths that stand for a directory here and that `path` begins with."""
    return max((m for m in mounts if path == m or path.startswith(f"{m}/")), key=len, default=None)


def on_this_machine(path: str, mounts: Mapping[str, str]) -> str:
    mount = mount_of(path, mounts)
    return path if mount is None else mounts[mount] + path[len(mount) :]


def exists(path: str | Path) -> bool:
    """Also where this user may not look: `Path.exists` raises."""
    return os.access(path, os.F_OK)


def _place(spec: RLJobSpec, path: str, mount: str | None) -> tuple[str, str]:
    """Where a path was looked for, and what helps if it is not there. In a pod, volumes of the spec are mounted as it says."""
    if mount is not None:
        return "on this machine", f"put it there, or name another directory with --mount {mount or '/'}=DIR"
    volume = volume_of(spec, path)
    if volume and os.path.ismount(volume.mount_path):
        return f"on the volume at {volume.mount_path}", "correct the path, or put it there"
    return "on this machine", f"say where it is with --mount {volume.mount_path if volume else Path(path).parent}=DIR"


def _read(spec: RLJobSpec, field: str, mounts: Mapping[str, str]) -> bool:
    """Whether a run reads (or writes) what the field names, whatever happens."""
    if field.endswith(".megatronCheckpoint") or field in STARTING_POINTS:
        return not exists(on_this_machine(spec.checkpoint.path, mounts))
    if field.startswith("spec.data.validation"):
        return not spec.supervised or spec.evaluation.takes_place
    return not (field.startswith("spec.rollout.agent.") and spec.train.batches.replay)


def _cannot_read(path: str) -> tuple[str, str]:
    """The problem, empty where it can be read, and what helps if that is not another place."""
    if exists(path):
        return ("", "") if os.access(path, os.R_OK) else (f"{path} cannot be read", "let this user read it")
    if exists(f"{path}.idx"):
        return "", ""
    above = _nearest(path)
    if Path(above).is_dir() and not os.access(above, os.X_OK):
        return f"{above} cannot be searched", "let this user search it"
    return f"there is no {path}", ""


def _unwritable(directory: str) -> str:
    """Empty: it can be written, or made."""
    above = _nearest(directory)
    writable = Path(above).is_dir() and os.access(above, os.W_OK | os.X_OK)
    return "" if writable else f"{directory} cannot be written"


def _nearest(path: str) -> str:
    """The path, or the innermost directory around it that is there."""
    return str(next(p for p in (Path(path), *Path(path).parents) if exists(p)))


def _paths(section: Model, field: str) -> Iterator[tuple[str, str]]:
    """Every path in a section and those within it, by its field."""
    hints = get_type_hints(type(section), include_extras=True)
    for name, info in type(section).model_fields.items():
        values, at = getattr(section, name), f"{field}.{info.alias}"
        named = [(f"{at}[{i}]", v) for i, v in enumerate(values)] if isinstance(values, list) else [(at, values)]
        for inner, value in named:
            if isinstance(value, Model):
                yield from _paths(value, inner)
            elif isinstance(value, str) and _is_path(hints[name]):
                yield inner, value


def _is_path(hint: Any) -> bool:
    return hint == AbsolutePath or any(_is_path(inner) for inner in get_args(hint))


@dataclass(frozen=True)
class Job:
    """A valid job."""

    name: str
    namespace: str
    spec: RLJobSpec


def load(file: Path, mounts: list[str], settings: Sequence[str] = (), needed: Callable[[str], bool] = always) -> Job:
    """`mounts`: `/path=directory`; `settings`: `train.steps=500`. The object with these settings is held to all rules, what it reads is looked for,
    then its paths are those of this machine. `needed`: of a field that names a file, whether it has to be here. Raises ManifestError."""
    try:
        jobs = read(file.read_text(), settings)
    except OSError as error:
        raise ManifestError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"cannot read {file}: is not UTF-8") from error
    except ManifestError as error:
        raise ManifestError(f"{file}: {error}") from error
    except OverrideError as error:
        raise ManifestError(str(error)) from error
    if len(jobs) > 1:
        raise ManifestError(f"{file}: holds {len(jobs)} jobs ({', '.join(j.name for j in jobs)}): keep one in a file")
    (job,) = jobs
    directories, wrong = parse_mounts(mounts)
    here = mounted(job.spec, directories)
    config, broken = _model_config(here)
    result = job.validate(config)
    violations = [*broken, *result.violations, *_adapter_violations(result.spec, config, here)]
    read_in_part = result.spec or readable(job.spec)
    if read_in_part and not wrong:  # else nobody knows where the files are
        violations += [v for v in absent(read_in_part, MOUNTED, directories) if needed(v.field)]
    if wrong or violations:
        raise ManifestError("\n".join(filter(None, (*wrong, lines(violations)))))
    return Job(job.name, job.namespace or "default", RLJobSpec.model_validate(here))


def parse_mounts(mounts: list[str]) -> tuple[dict[str, str], list[str]]:
    """Absolute directories by the path that they stand for, and what is wrong with the others."""
    directories, wrong = {}, []
    for mount in mounts:
        path, equals, directory = mount.partition("=")
        if equals and path.startswith("/") and exists(directory) and Path(directory).is_dir():
            directories[path.rstrip("/")] = str(Path(directory).resolve())
        else:
            wrong.append(f"--mount {mount}: must be /PATH=DIR with an absolute path and a directory that exists")
    return directories, wrong


def mounted(spec: dict[str, Any], mounts: dict[str, str]) -> dict[str, Any]:
    """The raw spec with the longest matching mount put in place of each path's beginning."""
    return spec | {section: _mounted(spec[section], mounts) for section in MOUNTED if section in spec}


def assign_gpus(spec: RLJobSpec, pods: Mapping[str, Sequence[str]], gpus: Sequence[str]) -> dict[str, dict[str, str]]:
    """Environment of each pod's process, by its name: in the order of `pods`, which are by role, and no GPU twice. Raises ManifestError when there
    are too few."""
    if spec.trainer.device == "cpu":
        return {pod: {} for names_of_pods in pods.values() for pod in names_of_pods}
    wanted = {pod: spec.processes_of(role) for role, names_of_pods in pods.items() for pod in names_of_pods}
    total = sum(wanted.values())
    if total > len(gpus):
        needed = " and ".join(
            f"{len(names_of_pods)} x {spec.processes_of(role)} for {role}" for role, names_of_pods in pods.items()
        )
        raise ManifestError(
            f"the job needs {total} GPUs, {needed}; this machine has {len(gpus)}: lower "
            "spec.trainer.processesPerNode or spec.rollout.replicas"
        )
    free = iter(gpus)
    return {pod: {VISIBLE: ",".join(next(free) for _ in range(count))} for pod, count in wanted.items()}


def _mounted(value: Any, mounts: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _mounted(v, mounts) for k, v in value.items()}
    if isinstance(value, list):
        return [_mounted(v, mounts) for v in value]
    return on_this_machine(value, mounts) if isinstance(value, str) else value


def _model_config(spec: dict[str, Any]) -> tuple[dict[str, Any], list[Violation]]:
    """Of a spec that may have any mistake."""
    model = spec.get("model")
    directory = str(model.get("path", "")) if isinstance(model, dict) else ""
    try:
        return model_config(str(newest_export(Path(directory)) or directory)) if directory else ({}, [])
    except OSError as error:
        return {}, _unreadable("spec.model.path", directory, error)


def _adapter_violations(spec: RLJobSpec | None, model: dict[str, Any], here: dict[str, Any]) -> Iterable[Violation]:
    """What the adapters to begin from have otherwise than the spec, when they are there already. `model`: its config.json. `here`: the spec with
    paths of this machine."""
    if not (spec and spec.model.lora and spec.model.lora.path):
        return ()
    directory = here["model"]["lora"]["path"]
    try:
        return [*adapter_violations(spec.model.lora, model, directory)] if Path(directory).is_dir() else ()
    except OSError as error:
        return _unreadable("spec.model.lora.path", directory, error)


def _unreadable(field: str, directory: str, error: OSError) -> list[Violation]:
    """A file in a directory that can be read; `absent` says it of one that cannot."""
    rule = f"{error.filename} cannot be read on this machine: {error.strerror}"
    return [Violation(field, directory, rule, "let this user read it")] if os.access(directory, os.R_OK) else []
