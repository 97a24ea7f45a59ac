"""The final answer in a box, as mathematical texts mark it."""

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""Braces; an escaped one is taken with its backslash and counts for nothing."""


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` (or `\\fbox{...}`, or `\\boxed 7`); None without one, or when it is empty or does not end."""
    starts = [found.end() for found in BOX.finditer(text)]
    if not starts:
        return None
    rest = text[starts[-1] :]
    if not rest.startswith("{"):
        return rest.split("$")[0].strip() or None
    depth = 0
    for brace in BRACE.finditer(rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return rest[1 : brace.start()].strip() or None
    return None
