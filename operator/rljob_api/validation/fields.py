"""The fields of the spec by their paths, as users write them."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from rljob_api.base import Model
from rljob_api.spec import RLJobSpec

Location = Iterable[str | int]
"""Keys of objects and indices of lists, from the outermost one."""


def section(location: Location) -> tuple[list[str], type[Model] | None]:
    """The keys of a location that are fields of the spec, and the model of the last one's value, if it has one. Free keys, such as those of labels,
    and what is below them are no fields."""
    found: list[str] = []
    model: type[Model] | None = RLJobSpec
    for key in location:
        if model is None or (isinstance(key, str) and key not in names_of(model)):
            break
        if isinstance(key, str):
            found.append(key)
            model = names_of(model)[key]
    return found, model


def names_of(model: type[Model]) -> dict[str, type[Model] | None]:
    """A model's fields by their YAML names, with the models of their values, or of the items of their lists."""
    return {str(field.alias): _held(field.annotation) for field in model.model_fields.values()}


def is_optional(model: type[Model], name: str) -> bool:
    """Whether the field, as it is written, is None unless it is written."""
    return any(field.alias == name and field.default is None for field in model.model_fields.values())


def paths(model: type[Model] = RLJobSpec, above: str = "") -> Iterator[str]:
    """Paths of all fields, without indices, such as `rewards.rule`."""
    for name, held in names_of(model).items():
        yield above + name
        if held:
            yield from paths(held, f"{above}{name}.")


def _held(annotation: Any) -> type[Model] | None:
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        return annotation
    return next(filter(None, map(_held, get_args(annotation))), None)
