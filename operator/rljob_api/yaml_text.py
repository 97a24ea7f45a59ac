"""YAML as kubectl reads it: keys and dates are strings, and 1e-6 is a number. Duplicate keys, of which other readers keep one, are reported."""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

FLOAT, DATE, MERGE = (f"tag:yaml.org,2002:{name}" for name in ("float", "timestamp", "merge"))
NUMBER = re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
"""A number of YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3.2)."""

ODD_BLANK = re.compile("[ \\t]*[\u00a0\u2000-\u200b\u202f\u3000\ufeff]")
HINTS = {
    "expected <block end>": "indent the line as its neighbours",
    "found character '\\t'": "indent with blanks, not with tabs",
    "mapping values are not allowed": "put a text with `: ` in it in quotes, or indent the line as its neighbours",
}
"""What to do, by how the parser's problem begins."""


class Loader(yaml.SafeLoader):
    """Reads values of JSON's types only, unless they are tagged."""

    yaml_implicit_resolvers = {
        first: [tag for tag in tags if tag[0] not in (FLOAT, DATE)]
        for first, tags in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        return {_key(key): self.construct_object(value, deep=deep) for key, value in node.value}


Loader.add_implicit_resolver(FLOAT, NUMBER, list("-+.0123456789"))


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that occurs twice in one object."""

    location: tuple[str | int, ...]
    values: tuple[str, str]
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a YAML stream."""

    value: Any
    duplicates: list[Duplicate]


def documents(text: str) -> Iterator[Document]:
    """All documents of a YAML stream, or of a JSON text. Raises yaml.YAMLError."""
    loader = Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node, "check_node has found it"
            duplicates = list(_duplicates(node, (), {}))
            yield Document(loader.construct_document(node), duplicates)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits, or a tag that the value does not fit
        raise yaml.YAMLError(f"it holds a value that cannot be read: {error}") from error
    finally:
        loader.dispose()


def value_of(text: str) -> Any:
    """One YAML value, such as stands on the right of a colon. Raises yaml.YAMLError."""
    return next((document.value for document in documents(text)), None)


def said(error: yaml.YAMLError) -> str:
    """Where, and what to write; other errors in the parser's words."""
    if not isinstance(error, yaml.MarkedYAMLError) or not error.problem_mark:
        return str(error)
    hint = next((text for start, text in HINTS.items() if (error.problem or "").startswith(start)), "")
    hint = _odd_blank(error.problem_mark) or hint
    place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    return f"{place}: {error.problem}" + (f"; {hint}" if hint else "")


def _odd_blank(mark: yaml.Mark) -> str:
    """A line up to the mark that is indented with something that only looks like blanks, as copied web pages have it."""
    lines = (mark.buffer or "").split("\n")[: mark.line + 1]
    odd = next((n for n, line in enumerate(lines, 1) if ODD_BLANK.match(line)), 0)
    return f"line {odd} begins with no-break spaces: write blanks" if odd else ""


def _key(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    raise yaml.constructor.ConstructorError(None, None, "a key must be a text", node.start_mark)


def _duplicates(node: yaml.Node, location: tuple[str | int, ...], open_: dict[int, bool]) -> Iterator[Duplicate]:
    """Duplicate keys in a node and below it. `open_`: nodes that were visited before, since aliases lead to them again; True while inside one."""
    if open_.get(id(node)):
        raise yaml.constructor.ConstructorError(None, None, "an alias leads into itself", node.start_mark)
    if id(node) in open_:
        return
    open_[id(node)] = True
    if isinstance(node, yaml.MappingNode):
        yield from _of_mapping(node, location)
    for key, value in _children(node):
        yield from _duplicates(value, (*location, key), open_)
    open_[id(node)] = False


def _children(node: yaml.Node) -> list[tuple[str | int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(_key(key), value) for key, value in node.value]
    return list(enumerate(node.value)) if isinstance(node, yaml.SequenceNode) else []


def _of_mapping(node: yaml.MappingNode, location: tuple[str | int, ...]) -> Iterator[Duplicate]:
    first: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        before = first.setdefault(_key(key), (key, value))
        if before[0] is not key and key.tag != MERGE:
            lines = before[0].start_mark.line + 1, key.start_mark.line + 1
            yield Duplicate((*location, _key(key)), (_text(before[1]), _text(value)), lines)


def _text(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "an object" if isinstance(node, yaml.MappingNode) else "a list"
