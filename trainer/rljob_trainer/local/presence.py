"""Whether the files that a job reads are on this machine: looked for before any process starts."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rljob_api.base import Model
from rljob_api.rules.engine import Violation
from rljob_api.rules.volumes import volume_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import AbsolutePath

WRITTEN = "spec.checkpoint.path"
STARTING_POINTS = ("spec.checkpoint.resumeFrom", "spec.model.lora.path")
"""With every megatronCheckpoint: a run that resumes reads none of them."""


def absent(spec: RLJobSpec, sections: tuple[str, ...], mounts: Mapping[str, str]) -> Iterator[Violation]:
    """All that is missing. `sections` are those whose paths are mounted. Paths of the spec are as in the manifest; with `mounts` they are this
    machine's."""
    fetched = [Path(source.path) for source in spec.sources.values()]
    for field, path in _paths(spec, "spec"):
        inside = field.split(".")[1].partition("[")[0] in sections
        if not inside or not _read(spec, field, mounts) or any(Path(path).is_relative_to(d) for d in fetched):
            continue
        mount = mount_of(path, mounts)
        here = on_this_machine(path, mounts)
        problem, fix = (_unwritable(here), "") if field == WRITTEN else _unreadable(here)
        if problem:
            yield Violation(field, path, f"{problem} on this machine", fix or _fix(spec, path, mount))


def mount_of(path: str, mounts: Mapping[str, str]) -> str | None:
    """The longest of the paths that stand for a directory here and that `path` begins with."""
    return max((m for m in mounts if path == m or path.startswith(f"{m}/")), key=len, default=None)


def on_this_machine(path: str, mounts: Mapping[str, str]) -> str:
    mount = mount_of(path, mounts)
    return path if mount is None else mounts[mount] + path[len(mount) :]


def exists(path: str | Path) -> bool:
    """Also where this user may not look: `Path.exists` raises."""
    return os.access(path, os.F_OK)


def _fix(spec: RLJobSpec, path: str, mount: str | None) -> str:
    if mount is not None:
        return f"put it there, or name another directory with --mount {mount or '/'}=DIR"
    volume = volume_of(spec, path)
    return f"say where it is with --mount {volume.mount_path if volume else Path(path).parent}=DIR"


def _read(spec: RLJobSpec, field: str, mounts: Mapping[str, str]) -> bool:
    """Whether a run reads (or writes) what the field names, whatever happens."""
    if field.endswith(".megatronCheckpoint") or field in STARTING_POINTS:
        return not exists(on_this_machine(spec.checkpoint.path, mounts))
    if field.startswith("spec.data.validation"):
        return not spec.supervised or spec.evaluation.takes_place
    return not (field.startswith("spec.rollout.agent.") and spec.train.batches.replay)


def _unreadable(path: str) -> tuple[str, str]:
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
