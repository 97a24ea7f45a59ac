"""Commands of the shell itself that give variables a value or print: `let`, `printf` and `read`."""

import re
from collections.abc import Sequence

from rljob_import.readers.arithmetic import evaluate
from rljob_import.readers.words import Variables, expand_text

ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
STEPPED = re.compile(r"\s*([A-Za-z_]\w*)\s*(\+\+|--)\s*|\s*(\+\+|--)\s*([A-Za-z_]\w*)\s*")
CONVERSION = re.compile(r"%(%|[-+0 #]*\d*(?:\.\d+)?[a-zA-Z])")
WITH_VALUE = ("-d", "-p", "-t", "-n", "-N", "-i", "-u", "-a")
"""Options of `read` that take a value."""


def compute(text: str, variables: Variables) -> str:
    """What `((text))` comes to: an assignment counts, and is its value."""
    text = expand_text(text, variables)
    if step := STEPPED.fullmatch(text):
        name, sign = step[1] or step[4], (step[2] or step[3])[0]
        text = f"{name} {sign}= 1"
    assigned = ASSIGNED.fullmatch(text)
    if not assigned:
        return evaluate(text, variables.number)
    name, operator, right = assigned.groups()
    value = evaluate(f"{name} {operator} ({right})" if operator else right, variables.number)
    variables.values[name] = [value]
    return value


def formatted(fields: Sequence[str]) -> str:
    """What `printf FORMAT ARGUMENT ...` writes."""
    given = iter(fields[1:])

    def one(match: re.Match[str]) -> str:
        return "%" if match[1] == "%" else _padded(match[1], next(given, ""))

    text = CONVERSION.sub(one, fields[0]) if fields else ""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _padded(conversion: str, text: str) -> str:
    try:
        if conversion[-1] in "di":
            return f"%{conversion}" % int(text or 0)
        if conversion[-1] in "efgEG":
            return f"%{conversion}" % float(text or 0)
        return f"%{conversion[:-1]}s" % text
    except ValueError:
        return text


def take(fields: Sequence[str], given: str, variables: Variables) -> None:
    """`read`: the first line of its input, or all of it with `-d ''`, by words to its names; the last name takes the rest."""
    names, whole, words = [], False, iter(fields)
    for field in words:
        if field in WITH_VALUE:
            whole = next(words, "") == "" or whole
        elif not field.startswith("-"):
            names.append(field)
    text = given if whole else given.partition("\n")[0]
    separator = variables.text("IFS")
    parts = text.strip().split(separator.strip() or None if separator else None, max(0, len(names) - 1))
    for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
        variables.values[name] = [part.strip()]
