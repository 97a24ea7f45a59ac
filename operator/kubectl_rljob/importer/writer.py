"""An RLJob as YAML with a comment beside each line that says where it comes from. Pure."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from kubectl_rljob.importer.engine import NAME, Imported
from rljob_api import names
from rljob_api.spec import RLJobSpec

POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number to Kubernetes, and a text to YAML 1.1 where it lacks a dot or a sign."""
WIDEST = 200
"""Columns of a comment; a longer one is cut."""
ORDER = [field.alias for field in RLJobSpec.model_fields.values()]


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes that Kubernetes would read as numbers."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", POWER, [*"-+.0123456789"])


def write(found: Imported, heading: str) -> str:
    """The manifest. `heading`: what it was made from."""
    lines = [
        f"# {heading}",
        f"apiVersion: {names.API_VERSION}",
        f"kind: {names.KIND}",
        "metadata:",
        _line(1, f"name: {flow(found.name)}", found.comments.get(NAME, "")),
        "spec:",
    ]
    spec = {key: found.spec[key] for key in sorted(found.spec, key=ORDER.index)}
    return "\n".join([*lines, *_object(spec, "", 1, found.comments)])


def _object(value: dict[str, Any], path: str, depth: int, comments: dict[str, str]) -> Iterator[str]:
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        if isinstance(inner, dict) and any(path.startswith(f"{here}.") for path in comments):
            yield _line(depth, f"{key}:", comments.get(here, ""))
            yield from _object(inner, here, depth + 1, comments)
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            yield _line(depth, f"{key}:", comments.get(here, ""))
            yield from (f"{'  ' * (depth + 1)}- {flow(item)}" for item in inner)
        else:
            yield _line(depth, f"{key}: {flow(inner)}", comments.get(here, ""))


def flow(value: Any) -> str:
    """On one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _line(depth: int, text: str, comment: str) -> str:
    comment = " ".join(comment.split())
    short = comment if len(comment) <= WIDEST else f"{comment[: WIDEST - 3]}..."
    return f"{'  ' * depth}{text}" + (f"  # {short}" if short else "")
