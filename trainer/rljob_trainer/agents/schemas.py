"""Functions as a chat template shows them: JSON schemas from signatures. Pure Python, for the agent's process."""

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
ROW = "row"
"""A parameter of this name gets the row of the data, and the policy does not see it."""


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """In OpenAI's form. The docstring is the description; `Annotated[int, "text"]` describes a parameter.

    Raises TypeError for a parameter without a type that JSON has.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != ROW]
    properties = {p.name: _property(p, hints.get(p.name)) for p in parameters}
    required = [p.name for p in parameters if p.default is p.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    described = {"name": function.__name__, "description": inspect.getdoc(function) or "", "parameters": schema}
    return {"type": "function", "function": described}


def _property(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError(f"the parameter {parameter.name!r} cannot be given by name")
    text = {"description": hint.__metadata__[0]} if get_origin(hint) is Annotated else {}
    return _type(parameter.name, get_args(hint)[0] if text else hint) | text


def _type(name: str, hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType) and type(None) in arguments and len(arguments) == 2:
        return _type(name, next(a for a in arguments if a is not type(None)))
    if origin is list and arguments:
        return {"type": "array", "items": _type(name, arguments[0])}
    if origin in TYPES:
        return {"type": TYPES[origin]}
    raise TypeError(f"the parameter {name!r} needs a type of {', '.join(t.__name__ for t in TYPES)}, or Literal")
