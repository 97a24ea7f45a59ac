"""Configurations of Hydra and OmegaConf: command lines of `a.b=value`, `+a.b=value`, `~a.b`, and the values in them; YAML documents, and `${...}` in
them: other keys, the environment, and the few functions that the systems register."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from rljob_api.yaml_text import said
from rljob_import.readers.words import end_of_brackets

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
    empty: list[str] = field(default_factory=list)
    """Overrides of which nothing stands behind the `=`."""


def launch(commands: Iterable[list[str]]) -> list[str]:
    """Of a script's commands the one with most overrides; empty: none has any."""
    return max(commands, key=_overrides, default=[])


def _overrides(words: list[str]) -> int:
    return sum(DOTTED.match(word) is not None for word in words)


def command_line(words: list[str]) -> CommandLine:
    line = CommandLine()
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if override := OVERRIDE.fullmatch(word):
            line.values[override[2]] = scalar(override[3])
            line.empty += [override[2]] if not override[3] else []
        elif deletion := DELETION.fullmatch(word):
            line.values.pop(deletion[1], None)
        elif flag := FLAG.fullmatch(word):
            line.flags[flag[1].replace("-", "_")] = flag[2] if flag[2] is not None else after
        elif word == "-m":
            line.module = after
    return line


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


Tree = dict[str, Any]
DEEPEST = 16
"""Interpolations that lead to others; more than this is a circle."""


def _add(*given: Any) -> Any:
    return sum(given)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "not": operator.not_,
    "add": _add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "int_div": operator.floordiv,
    "divide": operator.truediv,
}
"""Arithmetic that systems register with OmegaConf."""


class UnreadableFile(ValueError):
    """A file that is not of the form that was asked for; the text says why."""


def document(text: str) -> Any:
    """A YAML document. Raises Unreadable."""
    try:
        return plain(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UnreadableFile(f"is not YAML: {said(error)}") from error
    except RecursionError as error:
        raise UnreadableFile("is nested too deeply, or an alias leads into itself") from error
    except ValueError as error:  # a date without such a month, a number of thousands of digits
        raise UnreadableFile(f"holds a value that cannot be read: {error}") from error


def tree_of(text: str) -> dict[str, Any]:
    """A YAML document of keys and values. Raises Unreadable."""
    tree = document(text)
    if not isinstance(tree, dict):
        raise UnreadableFile("is not a YAML mapping")
    return tree


class Unresolved(ValueError):
    """An interpolation that leads nowhere; the text says which."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted path. Lists are leaves, and so are empty maps."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, path)
        else:
            flat[path] = value
    return flat


def resolve(tree: Tree, environment: Mapping[str, str]) -> tuple[Tree, list[str]]:
    """The tree without interpolations, and the paths of those that lead nowhere, which become None."""
    resolver = _Resolver(tree, environment)
    return resolver.walk(tree, ()), resolver.lost


class _Resolver:
    def __init__(self, tree: Tree, environment: Mapping[str, str]) -> None:
        self.tree, self.environment = tree, environment
        self.lost: list[str] = []

    def walk(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {k: self.walk(v, (*path, str(k))) for k, v in value.items()}
        if isinstance(value, list):
            return [self.walk(v, (*path, str(n))) for n, v in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            return self.text(value, path, 0)
        except Unresolved as error:
            self.lost.append(f"{'.'.join(path)}: {error}")
            return None

    def text(self, text: str, path: tuple[str, ...], depth: int) -> Any:
        """Of one interpolation alone its value, whatever it is; among other text a text."""
        if depth > DEEPEST:
            raise Unresolved(f"{text} leads in a circle")
        start = text.find("${")
        if start < 0:
            return text
        end = end_of_brackets(text, start + 1)
        value = self.one(text[start + 2 : end - 1], path, depth)
        if start == 0 and end == len(text):
            return value
        return self.text(f"{text[:start]}{'' if value is None else value}{text[end:]}", path, depth + 1)

    def one(self, inside: str, path: tuple[str, ...], depth: int) -> Any:
        name, colon, arguments = inside.partition(":")
        if not colon:
            return self.key(inside.strip(), path, depth)
        given = [self.argument(a.strip(), path, depth) for a in split(arguments)]
        if name == "oc.env":
            return self.variable(given)
        if name == "oc.select":
            return self.selected(split(arguments), path, depth)
        if name in FUNCTIONS:
            return _applied(FUNCTIONS[name], given, inside)
        raise Unresolved(f"${{{inside}}}: the function {name} is not known")

    def argument(self, text: str, path: tuple[str, ...], depth: int) -> Any:
        value = self.text(text, path, depth + 1)
        return _literal(value) if isinstance(value, str) else value

    def variable(self, given: list[Any]) -> Any:
        name = str(given[0])
        if name in self.environment:
            return _literal(self.environment[name])
        if len(given) > 1:
            return given[1]
        raise Unresolved(f"${{oc.env:{name}}}: give --env {name}=VALUE")

    def selected(self, arguments: list[str], path: tuple[str, ...], depth: int) -> Any:
        try:
            return self.key(arguments[0].strip(), path, depth)
        except Unresolved:
            return self.argument(arguments[1].strip(), path, depth) if len(arguments) > 1 else None

    def key(self, name: str, path: tuple[str, ...], depth: int) -> Any:
        """`a.b` from the top, `.b` beside the key itself, `..b` one level further up."""
        dots = len(name) - len(name.lstrip("."))
        parts = [*path[: len(path) - dots], *name.lstrip(".").split(".")] if dots else name.split(".")
        node: Any = self.tree
        for part in parts:
            if not isinstance(node, dict) or part not in node:
                raise Unresolved(f"${{{name}}}: there is no such key in the file")
            node = node[part]
        if depth > DEEPEST:
            raise Unresolved(f"${{{name}}} leads in a circle")
        if isinstance(node, str) and "${" in node:
            return self.text(node, tuple(parts), depth + 1)
        return node


def split(arguments: str) -> list[str]:
    """At commas outside of braces."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _literal(text: str) -> Any:
    words: dict[str, Any] = {"null": None, "none": None, "true": True, "false": False, "{}": {}, "[]": []}
    if text.lower() in words:
        return words[text.lower()]
    text = text.strip("'\"")
    return number(text) if re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", text) else text


def _applied(function: Callable[..., Any], given: list[Any], inside: str) -> Any:
    try:
        return function(*given)
    except (TypeError, ZeroDivisionError) as error:
        raise Unresolved(f"${{{inside}}}: {error}") from error
