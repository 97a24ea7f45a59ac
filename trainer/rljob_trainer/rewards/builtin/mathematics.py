"""The rule `math`, run by rewards/worker.py like a user's file: math-verify may never return, and hides its own errors."""

import logging
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that we time it ourselves
CACHED = 512
"""Texts may be as long as a response."""


def reward(prompt: str, response: str, answer: str) -> dict[str, Any]:
    """score: 1 when the response's final expression (boxed, else the last) equals the answer, else 0; pred: that expression. Raises ValueError for
    an answer without one."""
    final = response[max(response.rfind("\\boxed"), 0) :]  # of several boxes math-verify would make one set
    score, found = _equal(final, answer)
    return {"score": score, "pred": found}


@lru_cache(CACHED)
def _equal(final: str, answer: str) -> tuple[float, Any]:
    gold, found = _gold(answer), parse(final, parsing_timeout=None)
    said = found[0] if found else None
    if verify(gold, found, timeout_seconds=None):
        return 1.0, said
    verify(gold, found, timeout_seconds=None, raise_on_error=True)  # a comparison that broke is a failure, not a 0
    return 0.0, said


@lru_cache(CACHED)
def _gold(answer: str) -> list[Any]:
    final = answer.rsplit("####", 1)[-1].strip()
    marked = final if "$" in final or "\\boxed" in final else f"\\boxed{{{final}}}"
    if not (gold := parse(marked, parsing_timeout=None)):
        raise ValueError(f"the answer {final[:200]!r} is no mathematical expression")
    return gold
