"""Shell words: where one ends, and what it expands to. Text in, text out; no command is ever run."""

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rljob_import.readers.arithmetic import evaluate

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ARRAY = re.compile(r"\$@|\$\{\w+\[@\]\}")
SPECIAL = "@*#?$!0123456789"
OPENING = {"(": ")", "{": "}"}
BLANKS = " \t\n"


def end_of_word(text: str, start: int, stop: str) -> int:
    """Index behind the word that begins at `start`: quotes and expansions may hold any of the characters `stop`."""
    i = start
    while i < len(text) and text[i] not in stop:
        i = _end_of_piece(text, i)
    return i


def _end_of_piece(text: str, i: int) -> int:
    """Behind one character, one quoted text, or one expansion."""
    if text[i] == "\\":
        return min(i + 2, len(text))
    if text[i] == "'":
        return _behind(text, "'", i + 1)
    if text[i] in '"`':
        return _end_of_quoted(text, i)
    if text[i] == "$" and text[i + 1 : i + 2] in OPENING:
        return end_of_brackets(text, i + 1)
    return i + 1


def _end_of_quoted(text: str, start: int) -> int:
    mark, i = text[start], start + 1
    while i < len(text) and text[i] != mark:
        i = i + 1 if text[i] == "'" else _end_of_piece(text, i)
    return i + 1


def end_of_brackets(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    opening, i, depth = text[start], start, 0
    while i < len(text):
        depth += (text[i] == opening) - (text[i] == OPENING[opening])
        if not depth:
            return i + 1
        i = i + 1 if text[i] in "(){}" else _end_of_piece(text, i)
    return len(text)


def _behind(text: str, mark: str, start: int) -> int:
    place = text.find(mark, start)
    return len(text) if place < 0 else place + 1


def _no_output(_: str) -> str:
    return ""


@dataclass
class Variables:
    """Of a script. `output` is asked for what `$(...)` prints."""

    values: dict[str, list[str]] = field(default_factory=dict)
    """One text, or the elements of an array."""
    unset: dict[str, None] = field(default_factory=dict)
    """Names that were read, in this order, and have no value in the script."""
    output: Callable[[str], str] = _no_output

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None else " ".join(value[:1])

    def number(self, name: str) -> str:
        """As arithmetic reads it: 0 when the variable is unset or empty."""
        return self.text(name) or "0"


def expand(word: str, variables: Variables) -> list[str]:
    """The fields of a word: none for an empty unquoted variable, several for an array."""
    return _Expansion(variables).fields(word)


def expand_text(word: str, variables: Variables) -> str:
    """A word that is not split, as on the right of an assignment."""
    return " ".join(_Expansion(variables).fields(word, split=False))


@dataclass
class _Expansion:
    variables: Variables
    done: list[str] = field(default_factory=list)
    current: str | None = None
    """The field that is being put together; None: nothing of it is there yet."""
    split: bool = True

    def fields(self, word: str, split: bool = True) -> list[str]:
        self.split = split
        self._walk(word, quoted=False)
        self._close()
        return self.done

    def _add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def _close(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None

    def _walk(self, word: str, quoted: bool) -> None:
        i = 0
        while i < len(word):
            end = _end_of_piece(word, i) if not (quoted and word[i] == "'") else i + 1
            self._piece(word[i:end], word, end, quoted)
            i = max(end, self._behind)

    def _piece(self, piece: str, word: str, end: int, quoted: bool) -> None:
        self._behind = end
        if piece[0] == "\\" and len(piece) == 2:
            self._add("" if piece[1] == "\n" else piece if quoted and piece[1] not in '"\\$`' else piece[1])
        elif piece[0] == "'" and len(piece) > 1:
            self._add(piece[1:-1])
        elif piece[0] == '"' and not quoted:
            if not ARRAY.fullmatch(piece[1:-1]):  # an empty one is no field at all
                self._add("")
            self._walk(piece[1:-1], quoted=True)
        elif piece[0] == "$":
            self._dollar(piece, word, end, quoted)
        elif piece[0] == "`":
            self._put([self.variables.output(piece[1:-1])], quoted)
        else:
            self._add(piece)

    def _dollar(self, piece: str, word: str, end: int, quoted: bool) -> None:
        if piece.startswith("$((") and piece.endswith("))"):
            self._add(evaluate(expand_text(piece[3:-2], self.variables), self.variables.number))
        elif piece.startswith("$("):
            self._put([self.variables.output(piece[2:-1])], quoted)
        elif piece.startswith("${"):
            self._put(parameter(piece[2:-1], self.variables), quoted)
        else:
            self._named(word, end, quoted)

    def _named(self, word: str, end: int, quoted: bool) -> None:
        match = NAME.match(word, end)
        name = match[0] if match else word[end : end + 1] if word[end : end + 1] in SPECIAL else ""
        if not name:
            self._add("$")
            return
        self._behind = end + len(name)
        self._put(_value(name, self.variables), quoted)

    def _put(self, values: list[str], quoted: bool) -> None:
        """Elements of an array are fields of their own; unquoted text is split at blanks."""
        for n, value in enumerate(values):
            parts = [value] if quoted or not self.split else value.split()
            for m, part in enumerate(parts):
                if n or m:
                    self._close()
                self._add(part)


def _value(name: str, variables: Variables) -> list[str]:
    if name and name not in variables.values and name not in "@*#?$!0":
        variables.unset[name] = None
    return variables.values.get(name, [])


def parameter(inside: str, variables: Variables) -> list[str]:
    """What is between the braces of `${...}`."""
    if inside.startswith("#") and len(inside) > 1:
        return [_length(inside[1:], variables)]
    if inside.startswith("!") and len(inside) > 1 and not inside.endswith("]"):
        return parameter(variables.text(inside[1:]) or "", variables)
    match = NAME.match(inside)
    name = match[0] if match else inside[:1]
    rest = inside[len(name) :]
    if rest == "[*]":
        return [" ".join(_value(name, variables))]
    rest = rest.removeprefix("[@]")
    if not rest:
        return _value(name, variables)
    if rest.startswith("["):
        index, _, rest = rest[1:].partition("]")
        name, at = place_of(name, index, variables)
        if at is not None:
            return [variables.values[name][at]]
        if not rest:
            return _value(name, variables)
    if rest.startswith(":") and rest[1:2] in "-=?+":
        return _alternative(name, rest[1], rest[2:], bool(variables.text(name)), variables)
    if rest[:1] in "-=?+":
        return _alternative(name, rest[0], rest[1:], name in variables.values, variables)
    return [_changed(" ".join(_value(name, variables)), rest, variables)]


def place_of(name: str, index: str, variables: Variables) -> tuple[str, int | None]:
    """Where an element has its value: in a list, or under a name of its own, `A[key]`."""
    key, listed = expand_text(index.strip("'\""), variables), variables.values.get(name, [])
    number = evaluate(key, variables.number) if listed else ""
    if re.fullmatch(r"-?\d+", number) and -len(listed) <= int(number) < len(listed):
        return name, int(number)
    return f"{name}[{key}]", None


def _length(name: str, variables: Variables) -> str:
    values = _value(name.removesuffix("[@]").removesuffix("[*]"), variables)
    return str(len(values) if name.endswith("]") else len(" ".join(values)))


def _alternative(name: str, operator: str, word: str, present: bool, variables: Variables) -> list[str]:
    if operator == "+":
        return [expand_text(word, variables)] if present else []
    if present:
        return _value(name, variables)
    if operator == "?":
        return _value(name, variables)
    text = expand_text(word, variables)
    if operator == "=":
        variables.values[name] = [text]
    return [text]


def _changed(text: str, rest: str, variables: Variables) -> str:
    """`##`, `#`, `%%`, `%`: a matching beginning or end goes; `/`: something is replaced; `^`, `,`: another case."""
    if rest[:1] == "/":
        return _replaced(text, rest[1:], variables)
    if rest[:1] in "#%":
        longest = rest[:2] in ("##", "%%")
        pattern = expand_text(rest[1 + longest :], variables)
        cuts = [*_cuts(text, pattern, rest[0])]
        return (cuts[-1] if longest else cuts[0]) if cuts else text
    return {"^": text.upper(), ",": text.lower()}.get(rest[:1], text)


def _cuts(text: str, pattern: str, side: str) -> Iterator[str]:
    """What is left when a matching part was cut off, the shortest part first."""
    for n in range(len(text) + 1):
        part, left = (text[:n], text[n:]) if side == "#" else (text[len(text) - n :], text[: len(text) - n])
        if fnmatch.fnmatchcase(part, pattern):
            yield left


def _replaced(text: str, rest: str, variables: Variables) -> str:
    every = rest.startswith("/")
    old, _, new = rest[every:].partition("/")
    return text.replace(expand_text(old, variables), expand_text(new, variables), -1 if every else 1)
