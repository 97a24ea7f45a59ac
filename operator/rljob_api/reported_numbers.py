"""What is kept of the numbers in a pod's report: those that are known, finite and of use. The others do not cost anybody the report."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from rljob_api.metrics import METRICS, MOST_OWN, is_own_metric


def duration(value: object) -> object:
    """None for what is none of a step."""
    return value if _is_number(value) and 0 <= cast(float, value) < 1e9 else None


def durations(names: Collection[str]) -> Callable[[Any], Any]:
    """A validator that keeps the entries of these names whose values are durations."""

    def kept(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if name in names and duration(value) is not None}

    return kept


def known(names: Collection[str]) -> Callable[[Any], Any]:
    """A validator that keeps the entries of these names whose values are numbers."""

    def kept(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if name in names and _is_number(value)}

    return kept


def kept_metrics(given: Any) -> Any:
    """Keeps the metrics of the table, and a bounded number of those that the job names itself."""
    if not isinstance(given, Mapping):
        return given
    own = sorted(name for name in given if isinstance(name, str) and is_own_metric(name) and _is_number(given[name]))
    kept = {name for prefix, most in MOST_OWN.items() for name in [n for n in own if n.startswith(prefix)][:most]}
    return {name: value for name, value in given.items() if (name in METRICS or name in kept) and _is_number(value)}


def kept_points(given: Any) -> Any:
    """Keeps the points that hold numbers: a loss may be NaN, which JSON does not have."""
    if not isinstance(given, list):
        return given
    return [p for p in given if not isinstance(p, Mapping) or _is_point(p)]


def _is_number(value: object) -> bool:
    """Finite, and far from the ends of what a float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_point(given: Mapping[str, Any]) -> bool:
    unrewarded = given.get("reward") is None
    return all(_is_number(given.get(name)) for name in ("loss", "seconds", *(() if unrewarded else ("reward",))))
