"""What a user's reward function returned: a number, or a dict of a `score` and whatever else it has to say."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rljob_api.metrics import MOST_REWARD_METRICS, OWN_NAME

SCORE, PREDICTION = "score", "pred"
"""Keys of a dict that are no metrics. The second has its name from verl."""
LONGEST_PREDICTION = 1000
LARGEST = 3e38
"""Numbers beyond it have no mean in float32, and are no metrics."""


class Returned(NamedTuple):
    """As rewards/request.py has it."""

    score: float
    metrics: dict[str, float]
    prediction: str | None


class NotAReward(Exception):
    """Completes "reward() in reward.py returned ..."."""


def split(returned: Any) -> Returned:
    """The score, the other finite numbers by their names, and the prediction. Raises NotAReward."""
    if not isinstance(returned, Mapping):
        return Returned(_score(returned, ""), {}, None)
    if SCORE not in returned:
        raise NotAReward(f"a dict without {SCORE!r}: its keys are {_short(', '.join(map(str, returned))) or 'none'}")
    others = {key: value for key, value in returned.items() if key not in (SCORE, PREDICTION)}
    found = {key: number for key, value in others.items() if (number := _metric(value)) is not None}
    if strange := [key for key in found if not isinstance(key, str) or not OWN_NAME.fullmatch(key)]:
        raise NotAReward(
            f"a metric called {_short(repr(strange[0]))}: names are 1 to 64 letters, digits and _ . - @ / (the pattern {OWN_NAME.pattern})"
        )
    if len(found) > MOST_REWARD_METRICS:
        raise NotAReward(
            f"{len(found)} numbers in addition to {SCORE!r}, and at most {MOST_REWARD_METRICS} become metrics"
        )
    return Returned(_score(returned[SCORE], f"{SCORE} "), found, _prediction(returned.get(PREDICTION)))


def _score(value: Any, name: str) -> float:
    try:
        number = float(value)
    except Exception:  # an array or a tensor of several elements raises what it likes
        number = math.nan
    if not math.isfinite(number):
        raise NotAReward(f"{name}{_short(repr(str(value)))}, which is not a finite number")
    return number


def _metric(value: Any) -> float | None:
    """None for texts, lists and the like, and for a number that has no mean."""
    if not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except Exception:  # as above
        return None
    return number if abs(number) <= LARGEST else None


def _prediction(value: Any) -> str | None:
    """None: there is none, or it cannot be written."""
    try:
        text = "" if value is None else str(value).strip()[:LONGEST_PREDICTION]
        return text.encode(errors="replace").decode() or None  # half a character, as JSON may hold, is in no file
    except Exception:  # a user's object
        return None


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
