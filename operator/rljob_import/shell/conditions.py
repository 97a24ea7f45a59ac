"""The tests of shell scripts: `[`, `[[` and `test`, and patterns of `case`."""

import fnmatch
import re

from rljob_import.arithmetic import evaluate

NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def matches(subject: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(subject, pattern)


def holds(words: list[str]) -> bool:
    """A test: of texts and whole numbers; a file is never there."""
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in words:
            at = words.index(joint)
            return combine((holds(words[:at]), holds(words[at + 1 :])))
    match words:
        case ["!", *rest]:
            return not holds(rest)
        case ["-n", text]:
            return bool(text)
        case ["-z", *rest]:
            return not any(rest)
        case [left, ("=" | "=="), right]:
            return matches(left, right)
        case [left, "!=", right]:
            return not matches(left, right)
        case [left, "=~", pattern]:
            return re.search(pattern, left) is not None
        case [left, op, right] if op in NUMBERS:
            return evaluate(f"{left or 0} {NUMBERS[op]} {right or 0}") == "1"
        case [text]:
            return bool(text)
    return False
