"""Rules about paths in the pods: where they may lead, which data files have a reader, and which volume holds them."""

import types
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Union, get_args, get_origin

from rljob_api.base import Model
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import AbsolutePath
from rljob_api.validation.pods import volume_of
from rljob_api.validation.result import Violation

PATH = get_args(AbsolutePath)[1:]
"""What marks a field as a path in the pods."""
DATA_SUFFIXES = (".parquet", ".arrow", ".json", ".jsonl")
"""Ends of the names of data files, by which the trainer chooses a reader."""


def parent_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A path that goes up leads to another volume than its beginning says."""
    for field, path in paths(spec):
        if ".." in PurePosixPath(path).parts:
            yield Violation(
                field, path, "goes up by `..`, out of the directory that it names", "write the path without it"
            )


def suffix_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Data files of formats that nothing reads. Megatron's indexed data sets are named without a suffix."""
    if spec.task == "pretrain" and spec.data.format in ("auto", "indexed"):
        return
    for field, path in data_files(spec):
        if PurePosixPath(path).suffix not in DATA_SUFFIXES:
            rule = f"its name ends in none of {', '.join(DATA_SUFFIXES)}, by which the trainer chooses a reader"
            yield Violation(field, path, rule, "convert the file, or rename it")


def data_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """If the job has volumes, its data are on one of them."""
    for field, path in data_files(spec):
        if spec.volumes and volume_of(spec, path) is None:
            rule = "is on none of spec.volumes"
            yield Violation(field, path, rule, "put it below a mountPath, or mount the volume that holds it")


RULES = (parent_violations, suffix_violations, data_violations)


def data_files(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Fields and paths of training and held-out data."""
    yield from ((f"spec.data.train[{i}]", path) for i, path in enumerate(spec.data.train))
    yield from ((f"spec.data.validation[{i}]", path) for i, path in enumerate(spec.data.validation))
    for i, one in enumerate(spec.evaluation.sets):
        yield from ((f"spec.evaluation.sets[{i}].files[{j}]", path) for j, path in enumerate(one.files))


def outside_volumes(spec: RLJobSpec) -> dict[str, str]:
    """Fields whose paths are on no volume of a job that has some, so that the image has to hold them."""
    return {field: path for field, path in paths(spec) if spec.volumes and volume_of(spec, path) is None}


def paths(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """All paths in the pods that a spec names, by field."""
    return _of_section(spec, "spec")


def _of_section(section: Model, at: str) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        is_path = _holds_paths((field.annotation, *field.metadata))
        yield from _of_value(getattr(section, name), f"{at}.{field.alias}", is_path)


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
