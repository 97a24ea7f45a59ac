"""Each scheduling backend against fields that it does not read, or needs."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_placement.cluster import Node
from rljob_placement.gang import Gang


def broken(**changes: Any) -> list[str]:
    return [v.field for v in validate(raw_spec(**changes), "demo").violations]


@pytest.mark.parametrize(
    ("scheduling", "field"),
    [
        ({"backend": "kueue"}, "queue"),
        ({"backend": "volcano"}, "queue"),
        ({"backend": "kai"}, "queue"),
        ({"backend": "kueue", "queue": "my queue!"}, "queue"),
        ({"backend": "kueue", "queue": "q" * 64}, "queue"),
        ({"backend": "kai", "queue": "q\n"}, "queue"),
        ({"backend": "kai", "queue": "-q"}, "queue"),
        ({"backend": "native", "queue": "q"}, "queue"),
        ({"backend": "native", "topologyLevels": ["rack"]}, "topologyLevels"),
        ({"backend": "kai", "queue": "q", "priority": 1}, "priority"),
        ({"backend": "none", "queue": "q"}, "queue"),
        ({"backend": "native", "requiredLevel": "rack"}, "requiredLevel"),
        ({"backend": "builtin", "topologyLevels": ["block"], "requiredLevel": "rack"}, "requiredLevel"),
        ({"backend": "kueue", "queue": "q", "requiredLevel": "rack"}, "requiredLevel"),
        ({"backend": "builtin", "queue": "q"}, "queue"),
        ({"backend": "none", "topologyLevels": ["rack"]}, "topologyLevels"),
        ({"backend": "volcano", "queue": "q", "topologyLevels": ["rack"]}, "topologyLevels"),
        ({"backend": "none", "priority": 1}, "priority"),
        ({"backend": "builtin", "topologyLevels": ["rack", "rack"]}, "topologyLevels[1]"),
        ({"backend": "builtin", "topologyLevels": ["rack", "kubernetes.io/hostname"]}, "topologyLevels[1]"),
    ],
)
def test_a_field_that_a_backend_does_not_read_or_needs_is_named(scheduling: dict[str, Any], field: str) -> None:
    assert broken(scheduling=scheduling) == [f"spec.scheduling.{field}"]


@pytest.mark.parametrize(
    "scheduling",
    [
        {"backend": "builtin", "topologyLevels": ["block", "rack"], "priority": 3, "requiredLevel": "block"},
        {"backend": "kueue", "queue": "q", "topologyLevels": ["block", "kubernetes.io/hostname"]},
        {"backend": "volcano", "queue": "q"},
        {"backend": "volcano", "queue": "q" * 64},
        {"backend": "kai", "queue": "q" * 63},
        {"backend": "kai", "queue": "Team_A.rl-2"},
        {"backend": "native", "schedulerName": "gangs"},
        {"backend": "none"},
    ],
)
def test_what_a_backend_reads_is_taken(scheduling: dict[str, Any]) -> None:
    assert broken(scheduling=scheduling) == []


def test_affinity_to_other_pods_is_refused_where_it_is_not_planned_for() -> None:
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    rollout = {"template": {"affinity": affinity}, "sampling": {"maxTokens": 8}}
    assert broken(scheduling={"backend": "builtin"}, rollout=rollout) == ["spec.rollout.template.affinity.podAffinity"]
    assert broken(scheduling={"backend": "none"}, rollout=rollout) == []


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}}}


@pytest.mark.parametrize(
    ("broken_", "where"),
    [
        (affinity({"key": "gen", "operator": "Gt", "values": ["new"]}), ".nodeSelectorTerms[0].matchExpressions[0].values[0]"),
        (affinity({"key": "gen", "operator": "Gt", "values": ["9" * 5000]}), ".nodeSelectorTerms[0].matchExpressions[0].values[0]"),
        (affinity({"key": "gen", "operator": "Gt", "values": []}), ".nodeSelectorTerms[0].matchExpressions[0].values"),
        (affinity(*[{"key": "gen", "operator": "Exists"}] * 17), ".nodeSelectorTerms[0].matchExpressions"),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}] * 17}}}, ".nodeSelectorTerms"),
        (affinity({"key": "gen", "operator": "In", "values": ["x"] * 1025}), ".nodeSelectorTerms[0].matchExpressions[0].values"),
        (affinity({"operator": "Exists"}), ".nodeSelectorTerms[0].matchExpressions[0].key"),
        (affinity({"key": "gen", "operator": "Like"}), ".nodeSelectorTerms[0].matchExpressions[0]"),
        ({"nodeAffinity": {REQUIRED: {}}}, ".nodeSelectorTerms"),
        (affinity({"key": "gen", "operator": "Exists", "value": "x"}), ".nodeSelectorTerms[0].matchExpressions[0].value"),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpression": []}]}}}, ".nodeSelectorTerms[0].matchExpression"),
    ],
)  # fmt: skip
def test_a_node_affinity_that_cannot_be_read_is_refused_before_it_ends_everybodys_planning(
    broken_: dict[str, Any], where: str
) -> None:
    field = f"spec.rollout.template.affinity.nodeAffinity.{REQUIRED}{where}"
    assert broken(rollout={"template": {"affinity": broken_}}) == [field]


PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": []}}]}


@pytest.mark.parametrize(
    "fine",
    [
        affinity({"key": "gen", "operator": "Gt", "values": ["8"]}),
        affinity({"key": "other", "operator": "DoesNotExist", "values": []}),
        {"nodeAffinity": None},
        {"nodeAffinity": PREFERRED},
    ],
)
def test_a_node_affinity_that_is_taken_is_planned_by(fine: dict[str, Any]) -> None:
    changes = {"trainer": {"device": "cpu", "template": {"affinity": fine}}}
    assert broken(**changes) == []
    assert Gang.of(make_spec(**changes)).trainer.refuses(Node("n", {"gen": "9"})) == ""


CLAIM = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four"}]}
SERVER = {"sampling": {"maxTokens": 8}}


@pytest.mark.parametrize(
    ("trainer", "rollout", "fields"),
    [
        ({}, {}, ["spec.trainer.template.resourceClaims", "spec.rollout.template.resourceClaims"]),
        ({"template": CLAIM}, {}, ["spec.rollout.template.resourceClaims"]),
        ({"template": CLAIM}, {"template": CLAIM}, []),
        ({"device": "cpu"}, {}, []),
        ({"resourceName": "nvidia.com/gpu", "template": CLAIM}, {}, []),
        (
            {"template": {"resourceClaims": CLAIM["resourceClaims"] * 2}},
            {"template": CLAIM},
            ["spec.trainer.template.resourceClaims[1].name"],
        ),
        (
            {"template": {"resourceClaims": [{"name": "Gpus", "resourceClaimName": "one"}, {"name": 7}]}},
            {"template": CLAIM},
            [
                f"spec.trainer.template.resourceClaims[{i}].{name}"
                for i, names in enumerate((("resourceClaimName", "name"), ("name",)))
                for name in (*names, "resourceClaimTemplateName")
            ],
        ),
    ],
)
def test_gpus_without_an_extended_resource_come_from_a_claim_of_every_role(
    trainer: dict[str, Any], rollout: dict[str, Any], fields: list[str]
) -> None:
    assert broken(trainer={"device": "gpu", "resourceName": ""} | trainer, rollout=SERVER | rollout) == fields


def test_pods_whose_claims_bring_gpus_request_no_extended_resource() -> None:
    spec = make_spec(
        trainer={"resourceName": "", "template": CLAIM | {"resources": {"limits": {"memory": "1Gi"}}}},
        rollout=SERVER | {"template": CLAIM},
    )
    assert spec.container_resources("trainer") == {"limits": {"memory": "1Gi"}}
