"""Paths, names and pod settings: what no other system says as Kubernetes needs it."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rljob_api.spec.run import MOST_CHECKPOINTS
from rljob_import.engine import NAME
from rljob_import.settings import Settings
from rljob_import.shared.values import items, job_name, place
from rljob_import.table import Field, Note, Outcome, Said

PATHS = (
    *(f"data.{part}" for part in ("train", "validation")),
    *(f"{role}.path" for role in ("model", "model.lora", "critic", "reference", "checkpoint")),
    "model.megatronCheckpoint",
)
"""Fields with paths of the other system's machine."""
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""ORG/MODEL, as hubs name a model; a relative path of two parts looks the same."""


def pods(settings: Settings) -> Iterator[Said]:
    """Image and volume: from the command line."""
    options = settings.options
    yield Field("image", options.image, "--image")
    claim = {"persistentVolumeClaim": {"claimName": options.claim}}
    volume = {"name": "data", "mountPath": options.root, "source": claim}
    yield Field("volumes", [volume], "--claim, --root")
    yield from _other_root(settings)


def _other_root(settings: Settings) -> Iterator[Said]:
    """A mount path with which files of the other system stay where they are."""
    read = [given for given in settings.given.values() if given.row.field.split(", ")[0] in PATHS]
    paths = [str(v) for given in read for v in items(given.value) if str(v).startswith("/")]
    around = Counter(str(parent) for path in paths for parent in [*PurePosixPath(path).parents][:-1])
    often = [prefix for prefix, number in around.items() if number > 1 and 2 * number > len(paths)]
    prefix = max(often, key=lambda p: (around[p], len(p)), default=settings.options.root)
    if not f"{prefix}/".startswith(f"{settings.options.root}/"):
        text = (
            f"{around[prefix]} of {len(paths)} paths are below {prefix}: with --root {prefix} they stay where they are"
        )
        yield Note(Outcome.CHANGED, f"--root = {settings.options.root}", text)


def path(settings: Settings, field: str, key: str) -> Iterator[Said]:
    """A directory or a file that is there before the job begins."""
    value = settings[key]
    if value not in (None, ""):
        yield settings.field(field, _placed(settings, value), key, why=_from(settings, value))


def written(settings: Settings, field: str, key: str, default_name: str) -> Iterator[Said]:
    """A directory that the job writes to; `default_name` where the key says nothing."""
    yield from placed(settings, field, settings[key] if settings[key] not in (None, "") else default_name, key)


def placed(settings: Settings, field: str, value: Any, *keys: str) -> Iterator[Said]:
    """A directory that the job writes to, which has to be on the volume. The first key is that of a directory."""
    where = _placed(settings, value)
    if not f"{where}/".startswith(f"{settings.options.root}/"):
        where = _placed(settings, str(value).lstrip("/"))
    yield settings.field(field, where, *keys, why="" if where == value else str(value))
    if keys[0] in settings and not f"{where}/".startswith(f"{settings[keys[0]]}/"):
        yield settings.changed(keys[0], f"written to {where}, on the volume of --claim")


def located(settings: Settings, field: str, key: str) -> Iterator[Said]:
    """As `path`; of a relative path it is said where it is looked for. The model that a hub has under a name is fetched from there."""
    yield from path(settings, field, key)
    if field == "model.path" and HUB.fullmatch(str(settings[key])):
        yield settings.field("model.source", f"hf://{settings[key]}", key, why="fetched to model.path once")
    else:
        yield from _told(settings, key)


def files(settings: Settings, field: str, key: str) -> Iterator[Said]:
    if settings[key] not in (None, "", []):
        yield from placed_files(settings, field, items(settings[key]), key)


def placed_files(settings: Settings, field: str, values: list[Any], key: str) -> Iterator[Said]:
    """Files that a key names."""
    why = "; ".join(filter(None, (_from(settings, v) for v in values)))
    yield settings.field(field, [_placed(settings, v) for v in values], key, why=why)
    yield from _told(settings, key)


def _placed(settings: Settings, value: Any) -> str:
    return place(value, settings.options.root)


def _from(settings: Settings, value: Any) -> str:
    return "" if _placed(settings, value) == value else str(value)


def _told(settings: Settings, key: str) -> Iterator[Said]:
    moved = [_placed(settings, v) for v in items(settings[key]) if v and not str(v).startswith("/")]
    if moved:
        yield settings.changed(key, f"put on the volume of --claim, at {', '.join(moved)}")
    elsewhere = [
        str(v)
        for v in items(settings[key])
        if str(v).startswith("/") and not f"{v}/".startswith(f"{settings.options.root}/")
    ]
    if elsewhere:
        yield settings.changed(
            key, f"{', '.join(elsewhere)} is not below --root = {settings.options.root}: move it, or add its volume"
        )


def to_mount(path: str) -> str:
    """What is said of a file of the user's own code."""
    return f"put the file at {path} on the volume of --claim, or mount a ConfigMap with it there; what it imports, too"


def name(settings: Settings, *keys: str) -> Iterator[Said]:
    parts = [settings[key] for key in keys]
    yield settings.field(NAME, job_name(parts), *keys)


def named(settings: Settings, key: str, parts: list[str]) -> Iterator[Said]:
    """A name made of parts of a key's value."""
    yield settings.field(NAME, job_name(parts), key)


SPACE = (
    f"up to {MOST_CHECKPOINTS + 1} checkpoints of 14 bytes per parameter are on the volume, 100 GB each for 7 billion: lower checkpoint.keepLast; "
    "`kubectl rljob plan --model` shows the space"
)


def kept(settings: Settings, key: str) -> Iterator[Said]:
    """How many checkpoints are kept; where nothing bounds it, the most that an RLJob keeps."""
    number = settings.integer(key) if settings[key] else 0
    most = number <= 0 or number > MOST_CHECKPOINTS
    yield settings.field(
        "checkpoint.keepLast", MOST_CHECKPOINTS if most else number, key, why="the most here" if most else ""
    )
    if most:
        yield settings.changed(key, SPACE)
