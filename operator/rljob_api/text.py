"""Texts that others write. They are made safe to show: no terminal, log or table may take a part of one for something else. Addresses stand in URLs
in one way: an IPv6 address in brackets (RFC 3986).

JSON from the API server has objects that are nested ten times deeper than Python's decoder can read, so one object of a user would make a list of
all of them unreadable. And a wrong name gets the known one that it probably stands for, at a bounded cost: difflib compares a name with all known
ones letter by letter.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
"""ANSI escape sequences: colours, cursor movements, titles and links."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tabs and line ends, Unicode's line separators and changes of direction, and lone surrogates."""


def plain(text: str) -> str:
    """The text without control characters. Line ends are kept."""
    if text.isprintable():  # most are, and each report has many
        return text
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """The text without control characters, with a space in place of each run of white space that contains a line end or a tab."""
    if text.isprintable():
        return text.strip()
    return re.sub(r"(?<! ) *[\n\t][ \n\t]*", " ", plain(text)).strip()


def table_cell(text: str) -> str:
    """The text as a cell of a Markdown table: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def join_host_port(host: str, port: int) -> str:
    """`10.0.0.7:8000`, `name:8000` or `[fd00::7]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_url(host: str, port: int) -> str:
    """`http://[fd00::7]:8000`, without a path."""
    return f"http://{join_host_port(host, port)}"


DEEPEST = 200
"""Objects and lists around the innermost one that is kept; Python 3.12 reads about 1,500."""
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def load_json(text: bytes | str) -> Any:
    """As json.loads, with null in place of what is nested deeper than Python can read. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text.encode() if isinstance(text, str) else text))


def shallow(text: bytes) -> bytes:
    """The text with null in place of all objects and lists below DEEPEST."""
    kept, depth, begin = list[bytes](), 0, 0
    for token in TOKEN.finditer(text):
        if token[0] in (b"{", b"["):
            depth += 1
            if depth == DEEPEST + 1:
                kept += [text[begin : token.start()], b"null"]
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == DEEPEST:
                begin = token.end()
    return b"".join([*kept, text[begin:]])


LONGEST_NAME = 100
"""Longest name, in characters, that is compared: no known one is as long."""
MOST_NAMES = 10
"""Names that are compared in one validation. Whoever has more wrong names has another problem than their spelling."""


@dataclass(slots=True)
class _Budget:
    left: int


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited(most: int = MOST_NAMES) -> Iterator[None]:
    """Inside, `nearest` compares at most so many names, and answers None to all further ones."""
    token = _budget.set(_Budget(most))
    try:
        yield
    finally:
        _budget.reset(token)


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar, by difflib's ratio; None: none is similar enough, or nobody has looked."""
    budget = _budget.get()
    if len(name) > LONGEST_NAME or not known or (budget and not budget.left):
        return None
    if budget:
        budget.left -= 1
    return max(_ratios(name, known, cutoff), default=(0.0, None))[1]


def _ratios(name: str, known: Collection[str], cutoff: float) -> Iterator[tuple[float, str]]:
    """The candidates that may be the most similar, with their ratios. An upper bound of a ratio costs little, so the candidates are taken in the
    order of their bounds, up to the first that cannot win."""
    matcher, bounds, best = difflib.SequenceMatcher(b=name), list[tuple[float, str]](), cutoff
    for candidate in known:
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() < cutoff:
            continue
        bound = matcher.quick_ratio()
        if bound >= cutoff:
            bounds.append((bound, candidate))
    for bound, candidate in sorted(bounds, reverse=True):
        if bound < best:
            return
        matcher.set_seq1(candidate)
        ratio = matcher.ratio()
        if ratio >= best:
            best = ratio
            yield ratio, candidate
