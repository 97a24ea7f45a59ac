"""The rule `math`, run by rewards/worker.py like a user's file: math-verify may never return, and hides its own errors."""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from rljob_trainer.rewards.boxes import boxed
from rljob_trainer.rewards.notation import parts, plain, readable, same_base, same_duration, same_number, sides

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that we time it ourselves
CACHED = 512
"""Texts may be as long as a response."""
CLOSE = 1e-6
"""Relative. math-verify rounds to six decimals, to which all small numbers are equal."""
FORMULA = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
SAID = re.compile(r"(?:answer|result)(?:\s+is|\s*[:=])+\**\s*([^\n]+)", re.IGNORECASE)


def reward(prompt: str, response: str, answer: str) -> dict[str, Any]:
    """score: 1 when the response's final answer (in the last box; else behind "the answer is", its last line, formula or expression) equals the
    answer, else 0; pred: that expression. Raises ValueError for an answer that is empty."""
    final = answer.rsplit("####", 1)[-1].strip()
    if not final:
        raise ValueError(f"the answer {final!r} is no mathematical expression")
    gold = boxed(final) or final
    if box := boxed(response):
        return {"score": float(_equal(gold, box)), "pred": _prediction(box)}
    said = [found[1] for found in SAID.finditer(response)][-1:]
    said += [next(filter(None, found)) for found in FORMULA.findall(response)][-1:]
    lines = response.strip().splitlines()[-1:]
    score = any(plain(text) == plain(gold) for text in (response, *lines)) or any(_equal(gold, text) for text in said)
    found = _parsed(response.replace("\\$", ""))
    return {"score": float(score or _verified(_parsed(_box(gold)), found)), "pred": found[0] if found else None}


@lru_cache(CACHED)
def _equal(gold: str, found: str) -> bool:
    """Whether two answers are the same. What math-verify misreads is compared here: texts, numbers, bases, inequations, several blanks, durations."""
    if plain(gold) == plain(found):
        return True
    for same in (same_number, same_base, same_duration):
        if (known := same(gold, found)) is not None:
            return known
    for split in (sides, parts):
        first, second = split(gold), split(found)
        if len(first) > 1:
            return len(first) == len(second) and all(map(_equal, first, second))
        if split is sides and len(second) > 1:
            return False
    return _verified(_parsed(_box(gold)), _parsed(_box(found)))


def _verified(gold: list[Any], found: list[Any]) -> bool:
    """By math-verify. Raises what a comparison raises that broke: it is a failure, not a 0."""
    if not gold or not found:
        return False
    how: dict[str, Any] = {"timeout_seconds": None, "allow_set_relation_comp": True}
    if verify(gold, found, **how):
        return not _far(gold[0], found[0])
    verify(gold, found, **how, raise_on_error=True)
    return False


def _far(gold: Any, found: Any) -> bool:
    """Two numbers that differ by more than rounding."""
    if not all(getattr(x, "is_number", False) and getattr(x, "is_finite", False) for x in (gold, found)):
        return False
    try:
        a, b = complex(gold), complex(found)
    except (OverflowError, TypeError):  # beyond every float
        return False
    return abs(a - b) > CLOSE * max(abs(a), abs(b))


def _box(text: str) -> str:
    return f"\\boxed{{{readable(text)}}}"


def _prediction(box: str) -> Any:
    found = _parsed(_box(box))
    return found[0] if found else plain(box)


@lru_cache(CACHED)
def _parsed(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)
