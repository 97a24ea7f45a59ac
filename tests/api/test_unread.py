"""Fields that nothing reads are said with what would read them, and not where something does."""

from typing import Any

import pytest

from api.specs import make_spec
from kubectl_rljob.planning import advised
from rljob_api.rules.unread import UNREAD, unread

NEVER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("data.validation[0]", {"data": {"validation": ["/data/v.jsonl"]}}, {"evaluation": {"everySteps": 5}}),
    ("evaluation.sampling.maxTokens", {"evaluation": {"sampling": {"maxTokens": 4}}}, {"evaluation": {"only": True}}),
    (
        "evaluation.sets[0].name",
        {"evaluation": {"sets": [{"name": "a", "files": ["/data/a.jsonl"]}]}},
        {"evaluation": {"everySteps": 1}},
    ),
    ("algorithm.kl.where", {"algorithm": {"kl": {"where": "reward"}}}, {"algorithm": {"kl": {"coefficient": 0.1}}}),
    ("reference.path", {"reference": {"path": "/data/r"}}, {"algorithm": {"kl": {"coefficient": 0.1}}}),
    (
        "algorithm.overlong.penalty",
        {"algorithm": {"overlong": {"penalty": 0.5}}},
        {"algorithm": {"overlong": {"bufferTokens": 4}}},
    ),
    (
        "algorithm.rolloutCorrection.cap",
        {"algorithm": {"rolloutCorrection": {"cap": 3}}},
        {"algorithm": {"rolloutCorrection": {"importanceSampling": "token"}}},
    ),
]


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


@pytest.mark.parametrize(("field", "given", "reader"), NEVER, ids=[field for field, _, _ in NEVER])
def test_a_field_is_said_where_nothing_reads_it_and_only_there(
    field: str, given: dict[str, Any], reader: dict[str, Any]
) -> None:
    (said,) = unread(make_spec(**given))
    assert said.field == f"spec.{field}" and said in advised(make_spec(**given))
    assert not [*unread(make_spec(**merged(given, reader)))]


def test_every_row_has_a_case() -> None:
    assert all(any(field.startswith(row.start) for field, _, _ in NEVER) for row in UNREAD)
