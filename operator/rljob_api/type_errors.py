"""Errors of pydantic as messages for users: which rule is broken, and what to write instead."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from rljob_api.family import MODULES
from rljob_api.text import nearest

LONGEST, QUOTE = 80, "'"
"""Longest value in a message, in characters; the quotes that pydantic puts around names."""


class TypeProblem(NamedTuple):
    """One wrong value."""

    location: tuple[str | int, ...]
    """Keys and indices from the outermost object to the value."""
    kind: str
    """pydantic's name of the problem, for example `missing`."""
    value: str
    """What is there, as it would stand in YAML; `unset`: nothing."""
    rule: str
    fix: str
    """What to write; empty: the documentation of the field says more."""

    @property
    def path(self) -> str:
        return path_of(self.location)


def path_of(location: Iterable[str | int]) -> str:
    """For example `train.steps` or `rewards[0].rule`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")


def problems(error: ValidationError, most: int | None = None) -> list[TypeProblem]:
    """Errors in the order of the fields, `most` of them at most; None: all."""
    return [_problem(details["type"], details) for details in error.errors(include_url=False)[:most]]


def first_problem(error: ValidationError) -> str:
    """Field and rule of the first error, without the value: for objects that rljob writes, not users."""
    (first,) = problems(error, 1)
    return f"{first.path[:200]}: {first.rule}" if first.path else first.rule


def as_written(value: object) -> str:
    """A value as YAML, on one line, shortened to LONGEST characters."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        text += part
        if len(text) > LONGEST:
            break
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _problem(kind: str, details: Mapping[str, Any]) -> TypeProblem:
    value, location = details["input"], details["loc"] or ("",)
    rule, fix = SENTENCES[kind](value, details.get("ctx", {}) | {"section": location[0], "field": location[-1]})
    shown = "unset" if kind == "missing" else as_written(value)
    return TypeProblem(details["loc"], kind, shown, rule, fix)


Sentence = tuple[str, str]
"""Rule and fix."""
Say = Callable[[Any, Mapping[str, Any]], Sentence]
"""Makes the rule and the fix from a value and pydantic's context of the rule that it breaks, with the section of the spec that holds it and the name
of its field."""


def _whole_number(value: Any, ctx: Mapping[str, Any]) -> Sentence:
    written = float(_number(value) or math.nan)
    if not math.isfinite(written):
        known = "" if "." in str(value) else _without_unit(value, ctx["field"])
        return "must be a whole number", known or "write a whole number"
    near = {f"{rounded(written):.0f}": None for rounded in (math.floor, math.ceil)}
    return "must be a whole number", f"write {' or '.join(near)}"


def _any_number(value: Any, ctx: Mapping[str, Any]) -> Sentence:
    written = _number(value)
    fix = f"write {written}" if written else _without_unit(value, ctx["field"])
    return "must be a number", fix or "write a number, for example 0.5 or 1.0e-6"


MEASURED = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{1,15})")
"""A number with its unit behind it."""


WORD = 4
"""Letters of the shortest unit that is no prefix of a number, as in `8k`."""
SHORT = {"s": "seconds", "sec": "seconds", "secs": "seconds"}


def _without_unit(value: Any, field: str | int) -> str:
    """What to write in place of `25 steps`; empty: it is no number with a unit.

    Only a word that the field's name ends in can be left out: `500ms` are not 500 seconds, nor `8k` 8 tokens.
    """
    measured = MEASURED.fullmatch(value.strip()) if isinstance(value, str) else None
    if not measured:
        return ""
    number, unit = measured[1], measured[2].lower()
    whole = SHORT.get(unit, unit)
    if len(whole) >= WORD and str(field).lower().endswith((whole, f"{whole}s")):
        return f"write {number}, without a unit: the field's name has it"
    return "write the number alone, in the unit of the field's name"


def _number(value: Any) -> str | None:
    """A finite number, also inside quotes."""
    text = "" if isinstance(value, str) and len(value) > LONGEST else str(value).strip()
    return text if re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2})?", text) else None


def _truth(value: Any, _: Mapping[str, Any]) -> Sentence:
    meant = {"true": "true", "yes": "true", "on": "true", "1": "true", "false": "false", "no": "false", "off": "false"}
    known = meant.get(str(value).strip().lower())
    return "must be true or false", f"write {known}" if known else "write true or false, without quotes"


def _text(value: Any, _: Mapping[str, Any]) -> Sentence:
    simple = isinstance(value, bool | int | float)
    return "must be a text", f'write "{as_written(value)}", in quotes' if simple else "write one text"


TARGETS = {modules[0]: target for target, modules in MODULES.items() if len(modules) == 1}
"""Matrices that get adapters, by transformers' names."""
ALL = ("all-linear", "all", "all-linear-layers")


def _list(value: Any, _: Mapping[str, Any]) -> Sentence:
    if value in ALL:
        return "must be a list", "remove it: unset stands for all that there are"
    simple = not isinstance(value, dict | None) and len(as_written(value)) < LONGEST
    return "must be a list", f"write [{as_written(value)}]" if simple else "write a list"


def _choice(value: Any, ctx: Mapping[str, Any]) -> Sentence:
    expected = ctx.get("expected") or ctx["expected_tags"]
    among = re.split(r", | or ", expected.replace(QUOTE, ""))
    lower = {name.lower(): name for name in among}
    known = TARGETS.get(value) if isinstance(value, str) else None
    near = known if known in among else nearest(value.lower(), lower) if isinstance(value, str) else None
    rule = f"must be {among[0]}" if len(among) == 1 else f"must be one of {', '.join(among)}"
    return rule, f"did you mean {lower.get(near, near)}?" if near else "choose one of them"


def _untagged(_: Any, ctx: Mapping[str, Any]) -> Sentence:
    return f"lacks the field {ctx['discriminator'].strip(QUOTE)}", ""


def _refused(_: Any, ctx: Mapping[str, Any]) -> Sentence:
    return str(ctx["error"]), ""


def _bound(name: str, rule: str, fix: str) -> Say:
    def say(_: Any, ctx: Mapping[str, Any]) -> Sentence:
        bound = f"{ctx[name]:g}" if isinstance(ctx[name], float) else str(ctx[name])
        return rule.format(bound), fix.format(bound)

    return say


def _size(name: str, what: str, rule: str, fix: str) -> Say:
    def say(value: Any, ctx: Mapping[str, Any]) -> Sentence:
        return f"has {len(value)} {what}; {rule.format(ctx[name])}", fix

    return say


def _fixed(rule: str, fix: str = "") -> Say:
    def say(_value: Any, _ctx: Mapping[str, Any]) -> Sentence:
        return rule, fix

    return say


QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
PATTERNS = {
    r"^[^\s]+$": (
        "must be a reference to an image, without blanks",
        "write one, for example registry/rljob-trainer:1.0",
    ),
    r"^/[^\s]*$": ("must be an absolute path without blanks", "begin it with /"),
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": (
        "must be a DNS label",
        "use lower-case letters, digits and, between them, `-`",
    ),
    r"^[a-z0-9]+$": ("must be lower-case letters and digits", "use no others, also no `-`"),
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": (
        "must be the name of a Kubernetes object",
        "use lower-case letters, digits and, between them, `-` and `.`",
    ),
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$": (
        "must be the key of a label",
        "use letters, digits, `-`, `_` and `.`, after a DNS name and `/` if any",
    ),
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-A-Za-z0-9._~/]+$": (
        "must be a domain and a path",
        "write for example kueue.x-k8s.io/multikueue",
    ),
    r"^[^\s:]+$": ("must be a name without blanks and `:`", "choose such a name, for example Qwen/Qwen3-8B"),
    r"^https?://[^\s]+$": ("must be an http or https address without blanks", "begin it with http:// or https://"),
    r"^(hf|s3|gs)://[^\s/]+/[^\s]+$|^https?://[^\s/]+/[^\s]+$|^file:///[^\s]+$": (
        "must be the address of files in a hub, an object store, the web or a volume",
        "write for example hf://ORG/MODEL@REVISION, s3://BUCKET/PREFIX, https://HOST/FILE or file:///DIRECTORY",
    ),
    r"^(s3|gs)://[^\s/]+/[^\s]+$|^file:///[^\s]+$": (
        "must be the address of a directory in an object store or on a volume",
        "write for example s3://BUCKET/RUN, gs://BUCKET/RUN or file:///DIRECTORY",
    ),
    QUANTITY: (
        "must be a Kubernetes quantity",
        "write digits and one of m, k, Ki, M, Mi, G, Gi, T, Ti, for example 500m or 16Gi",
    ),
    r"^[^\x00]*$": ("must be a text without NUL, which no process can be given", "leave that character out"),
    r"^[A-Za-z_][A-Za-z0-9_]*$": (
        "must be a name of letters, digits and `_` that begins with no digit",
        "choose such a name",
    ),
    r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$": (
        "must be a name of letters, digits, `_`, `.` and `-` that does not begin with `.`",
        "choose such a name",
    ),
    r"^[A-Za-z0-9_][A-Za-z0-9_./@:-]*$": (
        "must be the name of an environment: letters, digits and `_`, inside also `.`, `/`, `@`, `:` and `-`",
        "write the name as its library has it",
    ),
    r"^-?[0-9]+$": ("must be a whole number, in quotes", 'write for example "8"'),
}
"""Rule and fix for strings, by the pattern that they have to match."""

ELSEWHERE = re.compile(r"[a-z0-9]+://\S+|[\w.-]+/[\w.-]+(@\S+)?")
"""What people write for a directory: an address, or the name of a model or of a set in a hub."""


WRITTEN = ("checkpoint", "train")
"""Sections of the spec whose directories the job writes: nothing is copied there."""


BYTES = {"B": "", "KB": "k", "MB": "M", "GB": "G", "TB": "T"} | {f"{unit}iB": f"{unit}i" for unit in "KMGT"}
"""Kubernetes' suffixes of quantities, by how sizes are written elsewhere."""
SUFFIXES = {unit.lower(): suffix for unit, suffix in BYTES.items()}


def _quantity(value: str) -> str:
    """Of a size with a unit as it is written elsewhere, `512GB`; empty: it is none."""
    measured = MEASURED.fullmatch(value.strip())
    suffix = SUFFIXES.get(measured[2].lower()) if measured else None
    return f"write {measured[1]}{suffix}" if measured and suffix is not None else ""


def _pattern(value: Any, ctx: Mapping[str, Any]) -> Sentence:
    rule, fix = PATTERNS[ctx["pattern"]]
    if ctx["pattern"] == QUANTITY:
        fix = _quantity(value) or fix
    if ctx["pattern"].startswith("^/") and ctx["section"] not in WRITTEN and ELSEWHERE.fullmatch(value):
        fix = "name a directory in the pods; model.source and data.sources copy a model and data there, for example hf://ORG/MODEL@REVISION"
    return rule, fix


SENTENCES: dict[str, Say] = {
    "missing": _fixed("is required"),
    "extra_forbidden": _fixed("there is no such field"),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), _whole_number),
    **dict.fromkeys(("float_type", "float_parsing"), _any_number),
    "finite_number": _fixed("must be a finite number", "write one, for example 0.5 or 1.0e-6"),
    **dict.fromkeys(("bool_type", "bool_parsing"), _truth),
    **dict.fromkeys(("string_type", "string_unicode"), _text),
    "list_type": _list,
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), _fixed("must be an object with fields of its own")
    ),
    **dict.fromkeys(("literal_error", "union_tag_invalid"), _choice),
    "union_tag_not_found": _untagged,
    "greater_than": _bound("gt", "must be above {}", "set more than {}"),
    "greater_than_equal": _bound("ge", "must be at least {}", "set {} or more"),
    "less_than": _bound("lt", "must be below {}", "set less than {}"),
    "less_than_equal": _bound("le", "must be at most {}", "set {} or less"),
    "string_too_short": _size("min_length", "characters", "at least {} are needed", "write them"),
    "string_too_long": _size("max_length", "characters", "at most {} are allowed", "shorten it"),
    "too_short": _size("min_length", "entries", "at least {} are needed", "add them"),
    "too_long": _size("max_length", "entries", "at most {} are allowed", "remove the others"),
    "string_pattern_mismatch": _pattern,
    "value_error": _refused,
    "invalid_key": _fixed("is a key and must be a text", "put it in quotes"),
    **dict.fromkeys(("json_invalid", "json_type"), _fixed("is not JSON")),
}
"""Rule and fix, by pydantic's name of the problem: all that the types of the contract can have."""
