"""Which section of the spec has a rule: the smallest that has all fields which the rule reads, so that its expression begins there. And which fields
have defaults in objects: those that rules read.

With each write of an object, also of its status, the API server evaluates all rules, and copies the schema of every field of each section that an
expression goes through (`Structural.Properties` of apiextensions-apiserver 0.37.2). With all rules at the spec, that was an eighth of its time while
jobs are created.
"""

import re
from typing import Any

Schema = dict[str, Any]
Validation = dict[str, str]

RULES = "x-kubernetes-validations"
FIELD = re.compile(r"\b(?:self|oldSelf)\.(\w+(?:\.\w+)*)\b(?!\()")
"""A field that an expression reads: its path, without the method that is called on it."""


def place(schema: Schema, rule: Validation) -> None:
    """Adds an entry of `x-kubernetes-validations` to a schema or to a section in it."""
    found = section(schema, rule["rule"])
    for name in found:
        schema = schema["properties"][name]
    beginning = re.compile(r"\b(self|oldSelf)\." + "".join(rf"{name}\." for name in found))
    schema.setdefault(RULES, []).append(rule | {"rule": beginning.sub(r"\1.", rule["rule"])})


def section(schema: Schema, rule: str) -> list[str]:
    """Path of the smallest section that has all that a rule reads, and that every object has: elsewhere the rule would not be evaluated."""
    read = [path.split(".")[:-1] for path in FIELD.findall(rule)]
    found = list[str]()
    for name, *others in zip(*read, strict=False):
        if {name} != {name, *others} or not _is_always_there(schema, name):
            break
        schema = schema["properties"][name]
        found.append(name)
    return found


def _is_always_there(schema: Schema, name: str) -> bool:
    return name in schema.get("required", ()) or "default" in schema["properties"][name]


def keep_read_defaults(schema: Schema, asked: set[str] | None = None) -> None:
    """Takes the defaults of all other fields from a schema: a rule reads those that it asks for itself, and `asked`, by paths that begin at it.

    The API server writes defaults into each object, and who has set them (managedFields). What any write of the object costs, also of its status,
    grows with their size. Whoever parses a spec gets the defaults from the models.
    """
    paths = _paths(schema, asked or set())
    for name, field in schema.get("properties", {}).items():
        if not any(path == name or path.startswith(f"{name}.") for path in paths):
            field.pop("default", None)
        keep_read_defaults(field, _below(paths, name))
    if isinstance(schema.get("items"), dict):
        keep_read_defaults(schema["items"])


def complete(schema: Schema) -> None:
    """Gives default sections the fields that their rules read. The API server evaluates these on a default as it stands in the schema, and not as it
    is in an object, where each field has its own default."""
    for part in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(part, dict):
            complete(part)
    if schema.get("default") == {}:
        schema["default"] = _read(schema, set[str]())


def _read(schema: Schema, asked: set[str]) -> dict[str, Any]:
    """The defaults of the fields that are asked for, and of those that the schema's own rules read. Paths begin at the schema."""
    paths = _paths(schema, asked)
    found = dict[str, Any]()
    for name in sorted({path.partition(".")[0] for path in paths}):
        field = schema["properties"][name]
        if "properties" in field and "default" in field:
            found[name] = _read(field, _below(paths, name))
        elif "default" in field:
            found[name] = field["default"]
    return found


def _paths(schema: Schema, asked: set[str]) -> set[str]:
    """Those that are asked for, and those that the schema's own rules read."""
    return asked | {path for rule in schema.get(RULES, ()) for path in FIELD.findall(rule["rule"])}


def _below(paths: set[str], name: str) -> set[str]:
    """The rest of those that begin with a field."""
    return {path.partition(".")[2] for path in paths if path.startswith(f"{name}.")}
