"""Secrets and ConfigMaps are named by the fields of Kubernetes: what is misspelt would be dropped from the pods without a word."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate

SECRET = {"name": "keys", "key": "token"}


def fields(**changes: Any) -> list[str]:
    return [violation.field for violation in validate(raw_spec(**changes), "demo").violations]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"envFrom": [{"secretref": {"name": "x"}}]}, "spec.envFrom[0].secretref"),
        ({"envFrom": [{"secret_ref": {"name": "x"}}]}, "spec.envFrom[0].secret_ref"),
        ({"envFrom": [{}]}, "spec.envFrom[0]"),
        ({"envFrom": [{"prefix": "A_"}]}, "spec.envFrom[0]"),
        ({"envFrom": [{"prefix": 1, "secretRef": {"name": "x"}}]}, "spec.envFrom[0].prefix"),
        ({"envFrom": [{"secretRef": "x"}]}, "spec.envFrom[0].secretRef"),
        ({"envFrom": [{"secretRef": {"name": ""}}]}, "spec.envFrom[0].secretRef.name"),
        ({"envFrom": [{"secretRef": {"name": "x", "optional": "no"}}]}, "spec.envFrom[0].secretRef.optional"),
        ({"envFrom": [{"secretRef": {"name": "x"}, "configMapRef": {"name": "x"}}]}, "spec.envFrom[0]"),
        ({"imagePullSecrets": [{"name": "x", "namespace": "y"}]}, "spec.imagePullSecrets[0].namespace"),
        ({"env": [{"name": "A", "valueFrom": {"secretkeyref": SECRET}}]}, "spec.env[0].valueFrom.secretkeyref"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x"}}}]},
            "spec.env[0].valueFrom.secretKeyRef.key",
        ),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "spec.env[0].valueFrom"),
        (
            {"trainer": {"template": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"path": "p"}}}]}}},
            "spec.trainer.template.env[0].valueFrom.fieldRef.path",
        ),
        ({"trainer": {"template": {"affinity": {"foo": 1}}}}, "spec.trainer.template.affinity.foo"),
    ],
)
def test_what_kubernetes_would_drop_is_named(changes: dict[str, Any], field: str) -> None:
    assert field in fields(**changes)


def test_a_field_that_is_missing_is_named_next_to_the_one_that_took_its_place() -> None:
    assert sorted(fields(imagePullSecrets=[{"nam": "x"}])) == [
        "spec.imagePullSecrets[0].nam",
        "spec.imagePullSecrets[0].name",
    ]


def test_every_source_of_kubernetes_is_taken() -> None:
    sources = {
        "secretKeyRef": SECRET | {"optional": True},
        "configMapKeyRef": SECRET,
        "fieldRef": {"fieldPath": "status.hostIP", "apiVersion": "v1"},
        "resourceFieldRef": {"resource": "limits.cpu", "divisor": 1},
        "fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"},
    }
    env = [{"name": f"A{i}", "valueFrom": {kind: source}} for i, (kind, source) in enumerate(sources.items())]
    env_from = [{"prefix": "A_", "secretRef": {"name": "x"}}, {"configMapRef": {"name": "y", "optional": False}}]
    assert fields(env=env, envFrom=env_from, imagePullSecrets=[{"name": "x"}]) == []
