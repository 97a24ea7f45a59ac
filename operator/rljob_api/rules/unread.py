"""Fields that nothing reads, because of what another field says: whoever wrote them expects what they ask for. They are said and not refused: the
other field is often changed for one run alone, as by `--set evaluation.everySteps=0`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rljob_api.rules.engine import Violation
from rljob_api.rules.fields import leaves
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written, path_of


class Unread(NamedTuple):
    """Fields that begin alike, and when they are read."""

    start: str
    is_read: Callable[[RLJobSpec], bool]
    rule: str
    fix: str


def _evaluates(spec: RLJobSpec) -> bool:
    return spec.evaluation.takes_place


def _penalizes(spec: RLJobSpec) -> bool:
    return spec.algorithm.kl.coefficient > 0


def _compares(spec: RLJobSpec) -> bool:
    return spec.has_reference


def _shortens(spec: RLJobSpec) -> bool:
    return spec.algorithm.overlong is None or spec.algorithm.overlong.buffer_tokens > 0


def _weighs(spec: RLJobSpec) -> bool:
    return spec.rollout_correction.importance_sampling not in (None, "none")


_NEVER = "is not read: nothing is evaluated, since spec.evaluation.everySteps is 0 and only is false"
_EVERY = "set spec.evaluation.everySteps, or remove it"
UNREAD = (
    Unread("data.validation", _evaluates, _NEVER, _EVERY),
    Unread("evaluation.s", _evaluates, _NEVER, _EVERY),
    Unread(
        "algorithm.kl.",
        _penalizes,
        "is not read: there is no penalty, since spec.algorithm.kl.coefficient is 0",
        "set the coefficient, for example 0.001, or remove it",
    ),
    Unread(
        "reference.",
        _compares,
        "is not read: nothing is compared with a reference, since spec.algorithm.kl.coefficient is 0 and it is no teacher",
        "set spec.algorithm.kl.coefficient, or remove spec.reference",
    ),
    Unread(
        "algorithm.overlong.penalty",
        _shortens,
        "is not read: no response is penalized, since bufferTokens is 0",
        "set spec.algorithm.overlong.bufferTokens, or remove it",
    ),
    Unread(
        "algorithm.rolloutCorrection.cap",
        _weighs,
        "is not read: nothing is weighted, since importanceSampling is none",
        "set spec.algorithm.rolloutCorrection.importanceSampling, or remove it",
    ),
)
"""By the beginning of the path. Those of one row are said once."""


def unread(spec: RLJobSpec) -> Iterator[Violation]:
    """The first field of each row that is written and not read."""
    written = [
        (path_of(where), value) for where, value in leaves(spec.model_dump(by_alias=True, exclude_defaults=True))
    ]
    for row in UNREAD:
        given = next(((path, value) for path, value in written if path.startswith(row.start)), None)
        if given and not row.is_read(spec):
            path, value = given
            yield Violation(f"spec.{path}", as_written(value), row.rule, row.fix)
