"""Which cases of a test `make test` runs, where `make test-all` runs every one."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def extra_but(always: Collection[str], every: Iterable[str]) -> list[Any]:
    """Parameters of a test. `always`: those of `every` that stand for the others; they differ in what the test is about."""
    cases = list(every)
    assert set(always) <= set(cases), f"no cases: {sorted(set(always) - set(cases))}"
    return [case if case in always else pytest.param(case, marks=pytest.mark.extra) for case in cases]
