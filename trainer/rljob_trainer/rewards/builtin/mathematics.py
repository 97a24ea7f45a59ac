"""The rule `math`, run by rewards/worker.py like a user's file: math-verify may never return, and hides its own errors.

How answers of public data sets are written: LaTeX, money, units, numbers in bases, blanks. They are compared as texts where they are no mathematics.
"""

import logging
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from rljob_trainer.rewards.rules import boxed

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
logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that we time it ourselves
CACHED = 512
"""Texts may be as long as a response."""
CLOSE = 1e-6
"""Relative. math-verify rounds to six decimals, to which all small numbers are equal."""
FORMULA = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
SAID = re.compile(r"(?:answer|result)(?:\s+is|\s*[:=])+\**\s*([^\n]+)", re.IGNORECASE)


def plain(text: str) -> str:
    """The text without what does not change its meaning, to be compared as it is."""
    text = boxed(text) or text
    text = DOLLARS.sub("", GROUPED.sub("", text.strip().strip("*")))
    less = WRAPPED.sub(r"\1", text)
    while less != text:
        text, less = less, WRAPPED.sub(r"\1", less)
    text = SPACES.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("−", "-")
    text = re.sub(r"\^\{?\\circ\}?|°", "", text).replace("\\%", "%").rstrip(".,;")
    return text.casefold() if WORDS.fullmatch(text) else text


def readable(text: str) -> str:
    """As math-verify reads it rightly."""
    text = GROUPED.sub("", DOLLARS.sub("", text)).strip().rstrip(".,;")
    text = re.sub(r"\\mathrm\s*\{\s*([ei])\s*\}", r"{\1}", text)
    text = REPEATING.sub(_repeating, text)
    built = BUILDER.fullmatch(text)
    if built:
        text = built[1]
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
    matches = [BASE.fullmatch(plain(text)) for text in (one, other)]
    said = [(match[1].lstrip("0"), match[2]) for match in matches if match]
    return said[0] == said[1] if len(said) == 2 else None


def same_duration(one: str, other: str) -> bool | None:
    """Of two like `3 hours 20 minutes`, of which math-verify reads the first number only. None: one is none."""
    matches = [DURATION.fullmatch(plain(text).lower()) for text in (one, other)]
    said = [
        (Decimal(m[1]), m[2].rstrip("s"), Decimal(m[3]), m[4].rstrip("s")) for m in matches if m and m[2] not in JOINED
    ]
    return said[0] == said[1] if len(said) == 2 else None


def sides(text: str) -> list[str]:
    """Of `x \\neq 2`, which math-verify cannot compare."""
    return re.split(r"\\neq?(?![a-zA-Z])|≠|!=", text)


def parts(text: str) -> list[str]:
    """What fills several blanks in their order: `5;10`."""
    return [part for part in re.split(r"[;；]", re.sub(r"\\;", " ", text)) if part.strip()]


def _decimal(text: str) -> Decimal | None:
    digits = TIMES_TEN.sub(r"e\1", plain(text)).rstrip("%")
    if GROUPS.fullmatch(digits):
        digits = digits.replace(",", "")
    return Decimal(digits) if DECIMAL.fullmatch(digits) else None


def _repeating(decimal: re.Match[str]) -> str:
    sign, whole, fixed, repeated = decimal.groups()
    value = Fraction(
        int((whole + fixed + repeated) or 0) - int((whole + fixed) or 0), 10 ** len(fixed) * (10 ** len(repeated) - 1)
    )
    return f"{sign}\\frac{{{value.numerator}}}{{{value.denominator}}}"


def reward(prompt: str, response: str, answer: str) -> dict[str, Any]:
    """score: 1 when the response's final answer (in the last box; else behind "the answer is", its last line, formula or expression) equals the
    answer, else 0; pred: that expression. Raises ValueError for an answer that is empty."""
    final = answer.rsplit("####", 1)[-1].strip()
    if not final:
        raise ValueError(f"the answer {final!r} is no mathematical expression")
    gold = boxed(final) or final
    box = boxed(response)
    if box:
        return {"score": float(_equal(gold, box)), "pred": _prediction(box)}
    said = [match[1] for match in SAID.finditer(response)][-1:]
    said += [next(filter(None, forms)) for forms in FORMULA.findall(response)][-1:]
    lines = response.strip().splitlines()[-1:]
    score = any(plain(text) == plain(gold) for text in (response, *lines)) or any(_equal(gold, text) for text in said)
    parsed = _parsed(response.replace("\\$", ""))
    return {"score": float(score or _verified(_parsed(_box(gold)), parsed)), "pred": parsed[0] if parsed else None}


@lru_cache(CACHED)
def _equal(gold: str, answer: str) -> bool:
    """Whether two answers are the same. What math-verify misreads is compared here: texts, numbers, bases, inequations, several blanks, durations."""
    if plain(gold) == plain(answer):
        return True
    for same in (same_number, same_base, same_duration):
        known = same(gold, answer)
        if known is not None:
            return known
    for split in (sides, parts):
        first, second = split(gold), split(answer)
        if len(first) > 1:
            return len(first) == len(second) and all(map(_equal, first, second))
        if split is sides and len(second) > 1:
            return False
    return _verified(_parsed(_box(gold)), _parsed(_box(answer)))


def _verified(gold: list[Any], answer: list[Any]) -> bool:
    """By math-verify. Raises what a comparison raises that broke: it is a failure, not a 0."""
    if not gold or not answer:
        return False
    how: dict[str, Any] = {"timeout_seconds": None, "allow_set_relation_comp": True}
    if verify(gold, answer, **how):
        return not _far(gold[0], answer[0])
    verify(gold, answer, **how, raise_on_error=True)
    return False


def _far(gold: Any, answer: Any) -> bool:
    """Two numbers that differ by more than rounding."""
    if not all(getattr(x, "is_number", False) and getattr(x, "is_finite", False) for x in (gold, answer)):
        return False
    try:
        a, b = complex(gold), complex(answer)
    except (OverflowError, TypeError):  # beyond every float
        return False
    return abs(a - b) > CLOSE * max(abs(a), abs(b))


def _box(text: str) -> str:
    return f"\\boxed{{{readable(text)}}}"


def _prediction(box: str) -> Any:
    parsed = _parsed(_box(box))
    return parsed[0] if parsed else plain(box)


@lru_cache(CACHED)
def _parsed(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)
