"""The final number of a text, exactly."""

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction

from rljob_trainer.rewards.boxes import boxed

DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,6}(?!\d))?"
NUMBER = re.compile(
    rf"(?P<sign>(?<![\w.)}}])-)?(?P<first>{DIGITS})"
    rf"(?: +(?P<top>\d+)/(?P<below>\d+)(?![\d/])|[/:](?P<over>{DIGITS})(?![\d/:])|\^\{{?(?P<power>-?\d{{1,4}})\}}?)?"
)
"""With or without thousands separators; a ratio, a mixed number or a power. A minus behind a digit, letter or bracket is a subtraction."""
FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?[\d,.]+)\s*\}|(\d))\s*(?:\{\s*([\d,.]+)\s*\}|(\d))")
TIMES_TEN = re.compile(r"(?<=\d)\s*(?:\\times|\\cdot|×|\*|x)\s*10\s*\^\s*\{?\s*(-?\d{1,6})\s*\}?")
GROUPED = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\[,! ]|[_\u00a0\u202f])(?=\d{3}(?!\d))")
UNITS = re.compile(r"(?<=[A-Za-z)}])\s*\^\s*\{?-?\d+\}?|(?<=\d)\s*(?:[ckdm]?m|ft|in|yd)[23]\b|(?<=\d)_\{?\d+\}?")
"""What stands behind a number and holds another: cm^2, m3, the base of 52_8."""
SIGNED = re.compile(
    r"(?<![\w.)}])-(?:(?=\\?\$\d)\\?\$|\((?=[\d\\])|\s*(?=\\[dt]?frac))|(?<=[=({[,$:]) *- +(?=[\d\\.])|^- +(?=\S+$)"
)
"""A minus with a currency, a bracket or white space in front of its number: -$5, -(1/3), x = - 5. One before an item of a list is none."""
EXACT = Context(prec=1000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Of any number in a response of ordinary length."""
LARGEST_POWER = 10_000
"""Digits. A larger one is read as its base."""
Number = Decimal | Fraction


def number(text: str) -> Number | None:
    """The last number after the last `####`, if there is one (the convention of GSM8K, arXiv 2110.14168), else in the last box, else of the text."""
    _, mark, final = text.rpartition("####")
    found = None
    for found in NUMBER.finditer(_written_plainly(final if mark else boxed(text) or text)):  # noqa: B007
        pass
    return _value(found) if found else None


def number_text(text: str) -> str | None:
    """The final number in one form, so that 72 and 72.0, or 1/2 and 0.5, are one text; None when there is none."""
    found = number(text)
    if isinstance(found, Fraction):
        exact = EXACT.divide(Decimal(found.numerator), Decimal(found.denominator))
        if exact != found:
            return str(found)
        found = exact
    return None if found is None else str(found.normalize(EXACT))


def _written_plainly(text: str) -> str:
    text = TIMES_TEN.sub(r"e\1", GROUPED.sub("", text.strip().replace("\u2212", "-")))
    text = SIGNED.sub(" -", UNITS.sub("", text))
    return FRACTION.sub(_ratio, text)


def _ratio(found: re.Match[str]) -> str:
    """Behind a digit it is a part of a mixed number."""
    mixed = " " if found.string[: found.start()][-1:].isdigit() else ""
    return f"{mixed}{found[1] or found[2]}/{found[3] or found[4]}"


def _value(found: re.Match[str]) -> Number:
    first, sign = _decimal(found["first"]), -1 if found["sign"] else 1
    if found["power"] and first.copy_abs().log10() * abs(int(found["power"])) < LARGEST_POWER:
        return sign * Fraction(first) ** int(found["power"])
    if found["over"] and (below := _decimal(found["over"])):
        return sign * Fraction(first) / Fraction(below)
    if found["below"] and int(found["below"]):
        ratio = Fraction(int(found["top"]), int(found["below"]))
        return sign * (Fraction(first) + ratio) if ratio < 1 else ratio
    return -first if sign < 0 else first


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))
