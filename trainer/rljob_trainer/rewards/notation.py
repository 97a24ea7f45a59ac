"""How answers of public data sets are written: LaTeX, money, units, numbers in bases, blanks. Compared as texts where they are no mathematics."""

import re
from decimal import Decimal
from fractions import Fraction

from rljob_trainer.rewards.boxes import boxed

WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|rm)\s*\{([^{}]*)\}")
SPACES = re.compile(r"\\[,;:! ]|\\(?:q?quad|displaystyle|left|right)(?![a-zA-Z])|[~\s]")
GROUPED = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\[,! ]|\s|,(?=\s*\\!))+\s*(?=\d{3}(?!\d))")
"""Between the digits of a large number: `11,\\! 111`, `1{,}000`, `1\\,000`."""
DOLLARS = re.compile(r"\\text\s*\{\s*\\?\$\s*\}|\\?\$|\\[()\[\]]")
REPEATING = re.compile(r"(-?)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}")
TIMES_TEN = re.compile(r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*\{?\s*([-+−]?\d+)\s*\}?")
UNIT = re.compile(r"(?<=[\d}])\s*(?:[ckdm]m|kg|mg|ml|inch(?:es)?|feet|ft)(?:\s*\^\s*\{?\s*[23]\s*\}?)?$")
BUILDER = re.compile(r"\\?\{\s*[a-zA-Z](?:\s*\\in[^|:]*?)?\s*(?:\\mid|\\vert|\\?\||:)\s*(.+?)\s*\\?\}")
BASE = re.compile(r"([0-9A-Z]+)_\{?(\d+)\}?")
DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,6})?")
GROUPS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
DURATION = re.compile(r"(\d+\.?\d*)([a-z]{2,})(\d+\.?\d*)([a-z]{2,})")
JOINED = ("and", "or", "to")
WORDS = re.compile(r"[a-z]{3,}(?:[a-z]*)", re.IGNORECASE)


def plain(text: str) -> str:
    """The text without what does not change its meaning, to be compared as it is."""
    text = boxed(text) or text
    text = DOLLARS.sub("", GROUPED.sub("", text.strip().strip("*")))
    while (less := WRAPPED.sub(r"\1", text)) != text:
        text = less
    text = SPACES.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("−", "-")
    text = re.sub(r"\^\{?\\circ\}?|°", "", text).replace("\\%", "%").rstrip(".,;")
    return text.casefold() if WORDS.fullmatch(text) else text


def readable(text: str) -> str:
    """As math-verify reads it rightly."""
    text = GROUPED.sub("", DOLLARS.sub("", text)).strip().rstrip(".,;")
    text = re.sub(r"\\mathrm\s*\{\s*([ei])\s*\}", r"{\1}", text)
    text = REPEATING.sub(lambda m: _repeating(*m.groups()), text)
    if found := BUILDER.fullmatch(text):
        text = found[1]
    return UNIT.sub("", text)


def same_number(one: str, other: str) -> bool | None:
    """Of two decimal numbers, with or without a power of ten or a percent sign. None: one is none."""
    a, b = _decimal(one), _decimal(other)
    if a is None or b is None:
        return None
    per_cent = [plain(text).endswith("%") for text in (one, other)]
    if per_cent[0] != per_cent[1] and (a, b) != (0, 0):
        return a == b or (a if per_cent[0] else b) == 100 * (b if per_cent[0] else a)
    return a == b


def same_base(one: str, other: str) -> bool | None:
    """Of two numbers like `1011_2`. None: one is none."""
    found = [BASE.fullmatch(plain(text)) for text in (one, other)]
    said = [(match[1].lstrip("0"), match[2]) for match in found if match]
    return said[0] == said[1] if len(said) == 2 else None


def same_duration(one: str, other: str) -> bool | None:
    """Of two like `3 hours 20 minutes`, of which math-verify reads the first number only. None: one is none."""
    found = [DURATION.fullmatch(plain(text).lower()) for text in (one, other)]
    said = [
        (Decimal(m[1]), m[2].rstrip("s"), Decimal(m[3]), m[4].rstrip("s")) for m in found if m and m[2] not in JOINED
    ]
    return said[0] == said[1] if len(said) == 2 else None


def sides(text: str) -> list[str]:
    """Of `x \\neq 2`, which math-verify cannot compare."""
    return re.split(r"\\neq?(?![a-zA-Z])|≠|!=", text)


def parts(text: str) -> list[str]:
    """What fills several blanks in their order: `5;10`."""
    return [part for part in re.split(r"[;；]", re.sub(r"\\;", " ", text)) if part.strip()]


def _decimal(text: str) -> Decimal | None:
    found = TIMES_TEN.sub(r"e\1", plain(text)).rstrip("%")
    if GROUPS.fullmatch(found):
        found = found.replace(",", "")
    return Decimal(found) if DECIMAL.fullmatch(found) else None


def _repeating(sign: str, whole: str, fixed: str, repeated: str) -> str:
    value = Fraction(
        int((whole + fixed + repeated) or 0) - int((whole + fixed) or 0), 10 ** len(fixed) * (10 ** len(repeated) - 1)
    )
    return f"{sign}\\frac{{{value.numerator}}}{{{value.denominator}}}"
