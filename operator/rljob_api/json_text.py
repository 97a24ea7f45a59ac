"""JSON from the API server. It takes objects that are nested ten times deeper than Python's decoder can read, so one object of a user would make a
list of all of them unreadable."""

import json
import re
from typing import Any

DEEPEST = 200
"""Objects and lists around the innermost one that is kept; Python 3.12 reads about 1,500."""
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def loads(text: bytes | str) -> Any:
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
