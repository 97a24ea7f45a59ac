"""Command lines of Hydra: `a.b=value`, `+a.b=value`, `~a.b`, and the values in them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)=(.*)", re.DOTALL)
DOTTED = re.compile(r"\+{0,2}[A-Za-z_]\w*\.[\w.@-]+=")
DELETION = re.compile(r"~([A-Za-z_]\w*(?:\.\w+)+)")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
FLAG = re.compile(r"--([a-z][\w-]*)(?:=(.*))?")


@dataclass
class CommandLine:
    """The words of a launch, sorted."""

    values: dict[str, Any] = field(default_factory=dict)
    """Overrides by dotted path, the last one of each."""
    flags: dict[str, str] = field(default_factory=dict)
    """`--name=value` or `--name value`, of the launcher or of Hydra."""
    module: str = ""
    """What `python -m` runs."""


def launch(commands: Iterable[list[str]]) -> list[str]:
    """Of a script's commands the one with most overrides; empty: none has any."""
    return max(commands, key=_overrides, default=[])


def _overrides(words: list[str]) -> int:
    return sum(DOTTED.match(word) is not None for word in words)


def command_line(words: list[str]) -> CommandLine:
    found = CommandLine()
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if override := OVERRIDE.fullmatch(word):
            found.values[override[2]] = scalar(override[3])
        elif deletion := DELETION.fullmatch(word):
            found.values.pop(deletion[1], None)
        elif flag := FLAG.fullmatch(word):
            found.flags[flag[1].replace("-", "_")] = flag[2] if flag[2] is not None else after
        elif word == "-m":
            found.module = after
    return found


def scalar(text: str) -> Any:
    """A value as OmegaConf reads it: `null`, `True`, `1e-6` (which YAML takes for text), lists, quoted texts."""
    try:
        if NUMBER.fullmatch(text.strip()):
            return number(text.strip())
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date without such a month
        return text
    if isinstance(value, str) and text.strip()[:1] in "'\"" and value[:1] in "[{":
        return scalar(value)
    return plain(value)


def plain(value: Any) -> Any:
    """Numbers that YAML took for texts are numbers, at any depth."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return number(value)
    return value


def number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
