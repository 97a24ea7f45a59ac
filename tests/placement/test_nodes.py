"""What is free on a node, and which nodes take which pods."""

import re
from typing import Any

import pytest

from api.specs import make_spec
from placement.makers import GPU, make_cluster, make_gang, make_node, make_pod, make_racks
from rljob_api import names
from rljob_api.quantity import exact, parse, show
from rljob_placement.cluster import Node, essential, occupied, parse_node, requests
from rljob_placement.gang import Demand, Stay
from rljob_placement.plan import plan


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("1", 1000),
        ("1500m", 1500),
        ("0.5", 500),
        ("2Ki", 2048_000),
        ("1e3", 1_000_000),
        ("1G", 10**12),
        ("1n", 1),
        (8, 8000),
    ],
)
def test_quantities_are_whole_thousandths(text: object, thousandths: int) -> None:
    assert parse(text) == thousandths


@pytest.mark.parametrize("text", ["1.5Q", "1.2.3", ".", "12e", "1e1000", "", "1,5"])
def test_what_is_no_quantity_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{re.escape(text)}' is no Kubernetes quantity"):
        parse(text)


def test_quantities_are_shown_as_people_write_them() -> None:
    assert [show(n) for n in (8000, 1500, 64 * 2**30 * 1000, 1000 * 1000)] == ["8", "1500m", "64Gi", "1000"]
    assert [exact(n) for n in (8000, 1500)] == ["8", "1500m"]


def test_a_pod_requests_what_the_scheduler_counts() -> None:
    def container(cpu: str, **rest: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}} | rest

    init = [container("1", restartPolicy="Always"), container("5"), container("2", restartPolicy="Always")]
    pod = {"containers": [container("1"), container("1")], "initContainers": init, "overhead": {"cpu": "100m"}}
    assert requests(pod) == {"cpu": 6100, "pods": 1000}, "the second init container beside the first sidecar"
    assert requests({"containers": [{"resources": {"limits": {GPU: "8"}}}]})[GPU] == 8000
    whole = requests(pod | {"resources": {"requests": {"cpu": "3"}}})
    assert whole == {"cpu": 3100, "pods": 1000}, "of the pod in place of its containers' sum"


def test_the_essential_part_of_a_pod_takes_what_the_pod_does() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}
    init = [{"name": "i", "restartPolicy": "Always", "resources": resources, "image": "x"}, {"name": "j"}]
    containers = [{"name": "c", "env": [{"name": "A", "value": "x" * 1000}], "resources": resources}]
    spec = {"nodeName": "a", "containers": containers, "initContainers": init, "overhead": {"cpu": "100m"}}
    pod = {"metadata": {"name": "p", "managedFields": [{}]}, "spec": spec | {"resources": resources}, "status": {}}
    for whole in (pod, pod | {"status": {"phase": "Failed", "conditions": []}}, {"spec": {"containers": []}}):
        part = essential(whole)
        assert (occupied(part), requests(part["spec"])) == (occupied(whole), requests(whole["spec"]))
    assert len(str(essential(pod))) < len(str(pod)) / 3


def test_only_pods_that_are_on_a_node_and_have_not_ended_take_something() -> None:
    pods = [make_pod("a", 2), make_pod("a", 4, "Succeeded"), {"spec": {"containers": []}}]
    (node,) = make_cluster([make_node("a")], pods).nodes
    assert (node.free[GPU], node.free["pods"]) == (6000, 109_000)


def demand(**template: Any) -> Demand:
    return Demand.of(make_spec(trainer={"device": "gpu", "template": template}), names.ROLE_TRAINER)


NODE = Node("n1", {"pool": "h200", "gen": "9"}, ({"key": "gpu", "value": "yes", "effect": "NoSchedule"},))
TOLERANT = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}


def terms(*expressions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions)} | fields
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return TOLERANT | {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ({}, "untolerated taint gpu"),
        (TOLERANT, ""),
        ({"tolerations": [{"operator": "Exists"}]}, ""),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, ""),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, "untolerated taint gpu"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, "untolerated taint gpu"),
        (TOLERANT | {"nodeSelector": {"pool": "h200"}}, ""),
        (TOLERANT | {"nodeSelector": {"pool": "a100"}}, "without label pool=a100 of nodeSelector"),
        (terms({"key": "pool", "operator": "In", "values": ["h200"]}), ""),
        (terms({"key": "pool", "operator": "NotIn", "values": ["h200"]}), "not matching node affinity"),
        (terms({"key": "gen", "operator": "Gt", "values": ["8"]}), ""),
        (terms({"key": "gen", "operator": "Lt", "values": ["8"]}), "not matching node affinity"),
        (terms({"key": "gen", "operator": "Lt", "values": [str(2**63 - 1)]}), ""),
        (terms({"key": "gen", "operator": "Lt", "values": [str(2**63)]}), "not matching node affinity"),
        (terms({"key": "gen", "operator": "Lt", "values": ["9" * 5000]}), "not matching node affinity"),
        (terms({"key": "gen", "operator": "Gt", "values": ["--1"]}), "not matching node affinity"),
        (terms({"key": "none", "operator": "DoesNotExist"}), ""),
        (terms({"key": "none", "operator": "Exists"}), "not matching node affinity"),
        (terms(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}]), ""),
        (terms(), "not matching node affinity"),
    ],
)
def test_a_node_refuses_what_the_scheduler_would(template: dict[str, Any], why: str) -> None:
    assert demand(**template).refuses(NODE) == why


def test_cordoned_nodes_and_those_that_do_not_answer_take_nobody() -> None:
    assert demand().refuses(parse_node(make_node("a", cordoned=True), {})) == "cordoned"
    assert demand().refuses(parse_node(make_node("a", ready=False), {})) == "not ready"


def test_why_there_is_no_room_is_said_per_level_and_reason() -> None:
    nodes = [*make_racks([2, 2, 1]), make_node("cpu-1"), make_node("old", cordoned=True, block="b9", rack="r9")]
    cluster = make_cluster(nodes, [make_pod("n1-0", 4)])
    assert plan(cluster, make_gang(8)).problem == (
        "needs capacity for 8 trainer pods with 8 nvidia.com/gpu each and the cluster has it for 4; "
        "block: b0 has capacity for 3, b1 for 1, 1 other for none; "
        "rack: b0/r0 has capacity for 2, b0/r1 for 1, b1/r2 for 1, 1 other for none; "
        "4/7 nodes have capacity for such a pod: 1 insufficient nvidia.com/gpu, 1 without label block, 1 cordoned"
    )


def test_a_pod_that_no_node_could_ever_hold_is_said_to_be_too_large() -> None:
    large = {"template": {"resources": {"requests": {"memory": "600Gi"}, "limits": {"memory": "600Gi"}}}}
    busy = make_cluster([make_node("a", block="b", rack="r")], [make_pod("a", 8)])
    without = make_cluster([make_node("cpu", 0, block="b", rack="r")])
    assert plan(busy, make_gang(1)).problem.endswith(": 1 insufficient nvidia.com/gpu"), "capacity may come"
    assert plan(without, make_gang(1)).problem.endswith("; no node has nvidia.com/gpu")
    assert plan(busy, make_gang(1, **large)).problem.endswith("; no node has more than 512Gi memory")


def test_those_who_stay_are_not_asked_for_again() -> None:
    cluster = make_cluster(make_racks([2]), [make_pod("n0-0", 8)])
    found = plan(cluster, make_gang(2), Stay(trainers=["n0-0"]))
    assert set(found.trainers) == {"n0-0", "n0-1"}
    assert plan(cluster, make_gang(3), Stay(trainers=["n0-0"])).problem.startswith(
        "needs capacity for 2 trainer pods with "
    )


def test_roles_that_fit_only_one_at_a_time_are_named_together() -> None:
    gang = make_gang(1, rollouts=1)
    assert plan(make_cluster(make_racks([1])), gang).problem == (
        "needs capacity for 1 trainer pod with 8 nvidia.com/gpu each and 1 rollout pod with 8 nvidia.com/gpu each; "
        "the cluster has it for 1 or for 1, not for both at once"
    )
