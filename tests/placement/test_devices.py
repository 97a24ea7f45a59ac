"""Devices of Dynamic Resource Allocation are counted as resources of nodes, or it is said which cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from api.specs import make_spec
from placement.device_objects import DRIVER, FULL, make_claim, make_class, make_slice, make_template
from placement.makers import make_cluster, make_node
from rljob_api.pod_patch import NO_PATCH, PodPatch
from rljob_placement.cluster import Cluster
from rljob_placement.devices import IMPLICIT, Allocation, Devices, claimed
from rljob_placement.gang import Gang
from rljob_placement.plan import plan
from rljob_placement.selectors import Device, UnreadableSelector, selects

GPU = f"{IMPLICIT}gpu"
H100 = Device(
    DRIVER,
    {
        "type": {"string": "gpu"},
        "sxm": {"bool": True},
        f"{DRIVER}/cores": {"int": 132},
        "release": {"version": "1.2.3"},
    },
    {"memory": {"value": "80Gi"}},
)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (FULL, True),
        (FULL.replace("'", '"'), True),
        (f'device.attributes["{DRIVER}"].type == "a && b" && device.driver == "{DRIVER}"', False),
        (f"device.driver != '{DRIVER}'", False),
        (f"device.attributes['{DRIVER}'].sxm", True),
        (f"!device.attributes['{DRIVER}'].sxm", False),
        (f"device.attributes['{DRIVER}'].cores >= 100", True),
        (f"device.attributes['{DRIVER}'].cores < 100", False),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) > 0", False),
        ("device.driver == 'other' && device.attributes['other'].missing == 'x'", False),
        ("device.attributes['other'].missing == 'x' && device.driver == 'other'", False),
    ],
)
def test_an_expression_of_comparisons_selects_what_it_does_in_kubernetes(expression: str, holds: bool) -> None:
    assert selects(expression, H100) is holds


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (f"device.driver == '{DRIVER}' || true", "not compared with a constant"),
        (f"device.attributes['{DRIVER}'].type.startsWith('g')", "not compared with a constant"),
        (f"device.attributes['{DRIVER}'].missing == 'x'", "which a device of gpu.example.com lacks"),
        (f"device.attributes['{DRIVER}'].type == 7", "compares 'gpu' with 7"),
        (f"device.attributes['{DRIVER}'].release == '1.2.3'", "asks for a version"),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('many')) >= 0", "is no Kubernetes quantity"),
        ("device.driver == '" + "x" * 3000 + "'", "has more than 2048 characters"),
    ],
)
def test_any_other_expression_is_refused(expression: str, why: str) -> None:
    with pytest.raises(UnreadableSelector, match=why):
        selects(expression, H100)


def devices(*slices: dict[str, Any], classes: Any = (), claims: Any = (), templates: Any = ()) -> Devices:
    return Devices.of(slices, classes or [make_class("gpu", FULL)], claims, templates)


def test_devices_are_counted_by_node_and_class_and_by_the_extended_resource_of_the_class() -> None:
    classes = [make_class("gpu", FULL, extended="nvidia.com/gpu"), make_class("nic", "device.driver == 'nic'")]
    found = devices(make_slice("a", 8), make_slice("b", 2), make_slice("a", 1, "nic"), classes=classes)
    assert found.nodes == {
        "a": {GPU: 8000, "nvidia.com/gpu": 8000, f"{IMPLICIT}nic": 1000},
        "b": {GPU: 2000, "nvidia.com/gpu": 2000},
    }


def test_only_the_newest_generation_of_a_pool_counts_and_no_device_that_a_taint_closes() -> None:
    old = make_slice("a", 8, pool={"name": "a", "generation": 1})
    new = make_slice("a", 3, pool={"name": "a", "generation": 2})
    tainted = make_slice("b", 2, device={"taints": [{"key": "broken", "effect": "NoSchedule"}]})
    assert devices(old, new, tainted).nodes == {"a": {GPU: 3000}}


def test_what_a_claim_holds_is_not_free_and_belongs_to_its_pod() -> None:
    found = devices(make_slice("a", 8), claims=[make_claim("p", "a", "gpu-0", "gpu-1")])
    assert found.allocations == [Allocation(("research", "p"), "a", {GPU: 2000})]
    cluster = make_cluster([make_node("a")]).offering(found)
    assert (cluster.nodes[0].free[GPU], cluster.nodes[0].size[GPU]) == (6000, 8000)


def test_a_node_that_offers_a_resource_itself_does_not_offer_it_by_devices_too() -> None:
    classes = [make_class("gpu", FULL, extended="nvidia.com/gpu")]
    cluster = make_cluster([make_node("a", gpus=4)]).offering(devices(make_slice("a", 8), classes=classes))
    assert cluster.nodes[0].free["nvidia.com/gpu"] == 4000


def test_a_node_whose_device_plugin_is_gone_offers_its_devices() -> None:
    """The kubelet still lists 0 of them."""
    classes = [make_class("gpu", FULL, extended="nvidia.com/gpu")]
    bare = make_cluster([make_node("a", gpus=0)])
    node = replace(bare.nodes[0], free={"nvidia.com/gpu": 0}, size={"nvidia.com/gpu": 0})
    found = Cluster((node,)).offering(devices(make_slice("a", 8), classes=classes)).nodes[0]
    assert (found.free["nvidia.com/gpu"], found.size["nvidia.com/gpu"]) == (8000, 8000)


def test_nothing_of_a_pool_counts_of_which_slices_are_missing() -> None:
    part = make_slice("a", 4, pool={"name": "a", "generation": 1, "resourceSliceCount": 2})
    assert devices(part).nodes == {}
    rest = make_slice("a", 0, pool=part["spec"]["pool"], devices=[part["spec"]["devices"][0] | {"name": "gpu-9"}])
    assert devices(part, rest).nodes == {"a": {GPU: 5000}}


def test_a_device_that_is_closed_while_a_claim_holds_it_stays_as_one_that_is_held() -> None:
    slice_ = make_slice("a", 8)
    for one in slice_["spec"]["devices"][:4]:
        one["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    found = devices(slice_, claims=[make_claim("p", "a", "gpu-0", "gpu-1")])
    assert found.nodes == {"a": {GPU: 6000}} and found.allocations[0].amounts == {GPU: 2000}


@pytest.mark.parametrize(
    ("slice_", "why"),
    [
        (make_slice("", 1, nodeName=None, allNodes=True), "several nodes share"),
        (make_slice("a", 1, device={"consumesCounters": [{"counterSet": "c"}]}), "parts of others"),
        (make_slice("a", 1, device={"allowMultipleAllocations": True}), "several claims share"),
        (make_slice("a", 1, device={"attributes": {}}), "lacks"),
    ],
)
def test_a_class_whose_devices_cannot_be_counted_is_refused_by_name(slice_: dict[str, Any], why: str) -> None:
    bare = make_class("gpu", f"device.driver == '{DRIVER}'")
    chosen = make_class("gpu", FULL) if why == "lacks" else bare
    found = devices(slice_, classes=[chosen], templates=[make_template("t", {"deviceClassName": "gpu"})])
    assert why in found.refused[GPU] and found.refused[GPU].startswith("DeviceClass gpu ")
    assert found.templates["research", "t"] == found.refused[GPU]


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        (make_template("t", {"deviceClassName": "gpu", "count": 8}), {GPU: 8000}),
        (make_template("t", {"deviceClassName": "gpu"}, {"deviceClassName": "gpu", "count": 2}), {GPU: 3000}),
        (make_template("t", {"deviceClassName": "gpu", "adminAccess": True}), {}),
        (make_template("t", {"deviceClassName": "gpu", "allocationMode": "All"}), "request r0 asks for no number"),
        (make_template("t", {"deviceClassName": "gpu", "selectors": [{}]}), "request r0 asks for selectors of its own"),
        (make_template("t", requests=[{"name": "r", "firstAvailable": []}]), "request r has several alternatives"),
        (make_template("t", constraints=[{"matchAttribute": "x"}]), "constraints on each other"),
    ],
)
def test_what_a_template_asks_for_is_counted_or_refused_by_name(template: dict[str, Any], asked: Any) -> None:
    found = devices(make_slice("a", 8), templates=[template]).templates["research", "t"]
    assert asked in found if isinstance(asked, str) else found == asked


CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "four"}]
TRAINER = {"nodes": 2, "processesPerNode": 4, "resourceName": "", "template": {"resourceClaims": CLAIMS}}
FOUR = make_template("four", {"deviceClassName": "gpu", "count": 4})


def spec_with_claims(**changes: Any) -> Any:
    return make_spec(trainer=TRAINER | changes, rollout={"replicas": 1, "template": {"resourceClaims": CLAIMS}})


def test_a_gang_with_claims_is_placed_where_the_devices_are_free() -> None:
    claims = [make_claim("p", "a", "gpu-0")]
    found = devices(make_slice("a", 8), make_slice("b", 8), make_slice("c", 4), claims=claims, templates=[FOUR])
    taken = claimed(spec_with_claims(), NO_PATCH, "research", found, lambda _: False)
    assert taken.by_role == {"trainer": {GPU: 4000}, "rollout": {GPU: 4000}}
    cluster = make_cluster([make_node(name, gpus=0) for name in "abcd"]).offering(found)
    planned = plan(cluster, Gang.of(spec_with_claims(), devices=taken.by_role))
    assert sorted([*planned.trainers, *planned.rollouts]) in (["a", "b", "b"], ["b", "b", "c"])
    more = Gang.of(spec_with_claims(nodes=4), devices=taken.by_role)
    assert "8 deviceclass" not in plan(cluster, more).problem
    assert (
        "needs capacity for 4 trainer pods with 4 deviceclass.resource.kubernetes.io/gpu each"
        in plan(cluster, more).problem
    )


def test_claims_of_the_administrator_are_counted_too_and_a_shared_claim_is_refused() -> None:
    found = devices(make_slice("a", 8), templates=[FOUR])
    patch = PodPatch.model_validate(
        {"models": {"spec": {"resourceClaims": [{"name": "more", "resourceClaimTemplateName": "four"}]}}}
    )
    assert claimed(spec_with_claims(), patch, "research", found, lambda _: False).by_role["trainer"] == {GPU: 8000}
    shared = PodPatch.model_validate({"all": {"spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "one"}]}}})
    problem = claimed(make_spec(), shared, "research", found, lambda _: True).problem
    assert problem == (
        "the builtin backend cannot count the devices of trainer pods: ResourceClaim one is one for several pods: "
        "use a ResourceClaimTemplate"
    )


def test_a_template_that_is_not_there_and_an_extended_resource_that_cannot_be_counted_are_named() -> None:
    found = devices(make_slice("a", 8))
    problem = claimed(spec_with_claims(), NO_PATCH, "research", found, lambda _: False).problem
    assert problem.endswith("there is no ResourceClaimTemplate four in namespace research")
    classes = [make_class("gpu", "true || false", extended="nvidia.com/gpu")]
    refused, gpus = devices(make_slice("a", 8), classes=classes), make_spec(trainer={"device": "gpu"})
    problem = claimed(gpus, NO_PATCH, "research", refused, lambda _: False).problem
    assert problem.startswith(
        "the builtin backend cannot count nvidia.com/gpu of trainer pods: DeviceClass gpu has 'true ||"
    )
    assert claimed(gpus, NO_PATCH, "research", refused, lambda name: name == "nvidia.com/gpu").problem == ""
