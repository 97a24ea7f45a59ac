"""What the API server would refuse in a StatefulSet's template is refused in the RLJob, with the author's field."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate


def fields(role: str = "trainer", **template: Any) -> list[str]:
    given = raw_spec()
    given[role] = given[role] | {"template": template}
    return [v.field for v in validate(given, "demo").violations]


@pytest.mark.parametrize("role", ["trainer", "rollout"])
@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("labels", {"team": "a b"}),
        ("labels", {"te am": "x"}),
        ("labels", {"Example.com/team": "x"}),
        ("labels", {"team": "x" * 64}),
        ("labels", {"a/b/c": "x"}),
        ("nodeSelector", {"gpu": "-h200"}),
        ("annotations", {"": "x"}),
        ("annotations", {"no/": "x"}),
    ],
)
def test_keys_and_values_that_are_no_labels_are_refused(role: str, kind: str, entries: dict[str, str]) -> None:
    assert fields(role, **{kind: entries}) == [f"spec.{role}.template.{kind}.{key}" for key in entries]


def test_right_ones_are_taken() -> None:
    right = {"team": "", "example.com/Team_1": "A-b.c_d", "a": "x" * 63}
    anything = {"note": "any text,\nof any length " * 99, "Example.com/Note": ""}
    tolerations = [
        {"operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
        {"key": "plain", "value": ""},
    ]
    assert fields(labels=right, nodeSelector=right, annotations=anything, tolerations=tolerations) == []


@pytest.mark.parametrize(
    ("toleration", "field"),
    [
        ({"key": "a", "operator": "Exist"}, ".operator"),
        ({"value": "a"}, ".operator"),
        ({"key": "a b", "operator": "Exists"}, ".key"),
        ({"key": "a", "operator": "Exists", "value": "b"}, ".value"),
        ({"key": "a", "effect": "Never"}, ".effect"),
        ({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}, ".effect"),
        ({"key": "a", "tolerationSeconds": "1", "effect": "NoExecute"}, ".tolerationSeconds"),
        ({"key": 1}, ".key"),
        ({"kee": "a"}, ".kee"),
    ],
)
def test_a_toleration_that_kubernetes_refuses_is_refused(toleration: dict[str, Any], field: str) -> None:
    assert fields(tolerations=[{"operator": "Exists"}, toleration]) == [f"spec.trainer.template.tolerations[1]{field}"]


def test_a_value_of_another_type_is_said_as_it_is_written_with_the_type_that_belongs_there() -> None:
    given = raw_spec()
    given["trainer"] = given["trainer"] | {"template": {"tolerations": [{"key": {"x": 1}, "tolerationSeconds": "1"}]}}
    key, seconds = (
        str(violation).split(";")[0].partition("[0].")[2] for violation in validate(given, "demo").violations
    )
    assert key == 'key = {"x": 1}: must be a text'
    assert seconds == "tolerationSeconds = 1: must be a whole number"
