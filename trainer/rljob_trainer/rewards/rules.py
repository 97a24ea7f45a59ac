"""Built-in rules that are cheap enough for the driver's own process. `math` is in builtin/mathematics.py."""

import re
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,6}(?!\d))?")
"""With or without thousands separators. A minus after a digit, letter or bracket is a subtraction, not a sign."""
EXACT = Context(prec=1000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Of any number that NUMBER finds in a response of ordinary length."""


def exact_match(response: str, answer: str) -> float:
    """1 when response and answer, both stripped, are equal, else 0."""
    return float(response.strip() == answer.strip())


def number_match(response: str, answer: str) -> float:
    """1 when the final numbers of response and answer are equal, else 0; also 0 for a response without any."""
    found = number(response)
    return float(found is not None and found == number(answer))


def number(text: str) -> Decimal | None:
    """The last number after the last `####`, if there is one (the convention of GSM8K, arXiv 2110.14168), else the last of the text."""
    numbers = NUMBER.findall(text.rsplit("####", 1)[-1])
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def stripped(response: str) -> str | None:
    """What `exactMatch` compares; None when nothing is left."""
    return response.strip() or None


def number_text(response: str) -> str | None:
    """The final number in one form, so that 72 and 72.0 are one text; None when there is none."""
    found = number(response)
    return None if found is None else str(found.normalize(EXACT))


RULES: Mapping[str, Callable[[str, str], float]] = {"exactMatch": exact_match, "number": number_match}
PREDICTIONS: Mapping[str, Callable[[str], str | None]] = {"exactMatch": stripped, "number": number_text}
"""By the same names: the answer that a response gives."""
