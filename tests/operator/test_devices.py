"""Jobs whose pods have claims of devices: they are placed where devices are free, and say why if these cannot be counted."""

from typing import Any

import pytest

from placement.device_objects import DRIVER, FULL, make_claim, make_class, make_slice, make_template
from rljob_operator.kube.api import ApiError, NotFound
from rljob_operator.watch.polled import DeviceInventory
from rljob_placement.devices import API, IMPLICIT, KINDS, NOT_LISTED
from simulator.cluster import FakeCluster
from simulator.crowd import Crowd
from simulator.site import NAMESPACE

CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "four"}]
POD = {"template": {"resourceClaims": CLAIMS}}
GPU = f"{IMPLICIT}gpu"


def put(crowd: Crowd, plural: str, obj: dict[str, Any]) -> None:
    group, version = API.split("/")
    assert plural in KINDS
    crowd.cluster.put({"kind": f"{plural}.{version}.{group}", **obj})


def crowd_with_devices() -> Crowd:
    """Two nodes of eight GPUs, and one without any."""
    crowd = Crowd({"n0": 10, "n1": 10, "n2": 10})
    put(crowd, "deviceclasses", make_class("gpu", FULL))
    for node in ("n0", "n1"):
        put(crowd, "resourceslices", make_slice(node, 8))
    return crowd


def apply(crowd: Crowd, name: str, trainers: int = 2) -> None:
    trainer = {"device": "gpu", "nodes": trainers, "processesPerNode": 4, "resourceName": ""} | POD
    crowd.apply(name, trainers, trainer=trainer, rollout={"replicas": 1} | POD)


async def turn(crowd: Crowd, turns: int = 6) -> None:
    for _ in range(turns):
        await DeviceInventory(crowd.cluster, crowd.feed.cache).look()
        await crowd.turns(2)


async def test_gangs_get_nodes_with_free_devices_until_there_are_none() -> None:
    crowd = crowd_with_devices()
    apply(crowd, "one")
    await crowd.turns(4)
    placement = crowd.status("one").placement
    assert placement and "those of the cluster are not listed yet" in placement.problem
    await turn(crowd)
    placement = crowd.status("one").placement
    assert placement and "there is no ResourceClaimTemplate four in namespace research" in placement.problem
    put(crowd, "resourceclaimtemplates", make_template("four", {"deviceClassName": "gpu", "count": 4}))
    await turn(crowd)
    nodes = list(crowd.on_nodes("one").values())
    assert len(nodes) == 3 and {*nodes} == {"n0", "n1"}
    placement = crowd.status("one").placement
    assert placement and placement.requests["trainer"][GPU] == 4000
    apply(crowd, "two", trainers=1)
    await turn(crowd)
    assert not crowd.on_nodes("two"), "only one pod of two finds devices"
    crowd.delete("one")
    await turn(crowd)
    assert len(crowd.on_nodes("two")) == 2


async def test_a_claim_counts_once_for_our_pod_and_always_for_the_pods_of_others() -> None:
    crowd = crowd_with_devices()
    put(crowd, "resourceclaimtemplates", make_template("four", {"deviceClassName": "gpu", "count": 4}))
    apply(crowd, "one", trainers=1)
    await turn(crowd)
    for i, (pod, node) in enumerate(crowd.on_nodes("one").items()):
        put(crowd, "resourceclaims", make_claim(pod, node, *(f"gpu-{4 * i + k}" for k in range(4))))
    put(crowd, "resourceclaims", make_claim("foreign", "n1", "gpu-0", namespace="other"))
    await turn(crowd)
    held, capacity = [*crowd.on_nodes("one").values()], crowd.feed.cache.capacity
    free = {name: node.free.get(GPU) for name in ("n0", "n1", "n2") if (node := capacity.free(name))}
    assert free == {"n0": 8000 - 4000 * held.count("n0"), "n1": 7000 - 4000 * held.count("n1"), "n2": None}
    apply(crowd, "two", trainers=1)
    await turn(crowd)
    assert not crowd.on_nodes("two")
    claim = make_claim("foreign", "n1", "gpu-0", namespace="other")
    crowd.cluster.remove(crowd.cluster.objects["resourceclaims.v1.resource.k8s.io", "other", claim["metadata"]["name"]])
    await turn(crowd)
    assert len(crowd.on_nodes("two")) == 2, "the foreign claim is gone"


async def test_devices_are_looked_for_only_while_a_job_wants_some() -> None:
    crowd = crowd_with_devices()
    crowd.apply("plain", 1)
    await crowd.turns(3)
    inventory = DeviceInventory(crowd.cluster, crowd.feed.cache)
    assert not inventory.wanted()
    apply(crowd, "one")
    await crowd.turns(3)
    assert inventory.wanted()


async def test_a_resource_that_many_jobs_name_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = crowd_with_devices()
    for name in "abc":
        crowd.apply(name, 1, trainer={"device": "gpu", "nodes": 1}, rollout={"replicas": 1})
    await crowd.turns(2)
    cache, asked = crowd.feed.cache, list[str]()
    monkeypatch.setattr(cache, "offers", lambda resource: not asked.append(resource))
    assert not DeviceInventory(crowd.cluster, cache).wanted()
    assert asked and len(asked) == len(set(asked))


async def test_objects_that_cannot_be_read_leave_what_was_known() -> None:
    crowd = crowd_with_devices()
    inventory = DeviceInventory(crowd.cluster, crowd.feed.cache)
    await inventory.look()
    known = crowd.feed.cache.devices
    put(crowd, "resourceslices", {"metadata": {"name": "broken"}, "spec": {}})
    await inventory.look()
    assert crowd.feed.cache.devices == known and known.nodes["n0"] == {GPU: 8000}


async def test_the_claims_of_pods_are_in_their_template_next_to_those_of_the_administrator() -> None:
    crowd = crowd_with_devices()
    apply(crowd, "one")
    await crowd.turns(3)
    pod = crowd.cluster.objects["StatefulSet", NAMESPACE, "one-trainer"]["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == CLAIMS
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpus"}]}


async def test_a_pod_with_several_claims_of_the_same_devices_counts_all_of_them() -> None:
    crowd = crowd_with_devices()
    put(crowd, "deviceclasses", make_class("any", f"device.driver == '{DRIVER}'"))
    put(crowd, "resourceclaimtemplates", make_template("four", {"deviceClassName": "gpu", "count": 2}))
    put(crowd, "resourceclaimtemplates", make_template("others", {"deviceClassName": "any", "count": 2}))
    claims = {"template": {"resourceClaims": [*CLAIMS, {"name": "o", "resourceClaimTemplateName": "others"}]}}
    trainer = {"device": "gpu", "nodes": 1, "processesPerNode": 2, "resourceName": ""} | claims
    crowd.apply("one", 1, trainer=trainer, rollout={"replicas": 1} | claims)
    await turn(crowd)
    held = crowd.on_nodes("one")
    for i, (pod, node) in enumerate(held.items()):
        for k, name in enumerate(("gpus", "o")):
            claim = make_claim(pod, node, f"gpu-{4 * i + 2 * k}", f"gpu-{4 * i + 2 * k + 1}")
            claim["metadata"]["name"] = f"{pod}-{name}"
            put(crowd, "resourceclaims", claim)
    await turn(crowd)
    for name in ("n0", "n1"):
        node = crowd.feed.cache.capacity.free(name)
        assert node and node.free[GPU] == 8000 - 4000 * [*held.values()].count(name)


async def test_devices_of_a_job_that_are_tainted_take_nothing_of_those_that_are_free() -> None:
    crowd = crowd_with_devices()
    put(crowd, "resourceclaimtemplates", make_template("four", {"deviceClassName": "gpu", "count": 4}))
    apply(crowd, "one", trainers=1)
    await turn(crowd)
    pod, name = next(iter(crowd.on_nodes("one").items()))
    put(crowd, "resourceclaims", make_claim(pod, name, *(f"gpu-{k}" for k in range(4))))
    await turn(crowd)
    before = crowd.feed.cache.capacity.free(name)
    slices = crowd.cluster.edit("resourceslices.v1.resource.k8s.io", None, f"{name}-{DRIVER}")["spec"]
    sick = {"taints": [{"key": "sick", "effect": "NoSchedule"}]}
    slices["devices"] = [one | (sick if i < 4 else {}) for i, one in enumerate(slices["devices"])]
    await turn(crowd)
    after = crowd.feed.cache.capacity.free(name)
    assert before and after and before.free[GPU] == after.free[GPU]


@pytest.mark.parametrize(("plugin", "trainers", "nodes"), [("8", 2, {"n0", "n1", "n2"}), ("0", 1, {"n0", "n1"})])
async def test_devices_count_also_while_another_node_has_or_had_a_device_plugin(
    plugin: str, trainers: int, nodes: set[str]
) -> None:
    """As in a cluster that is being migrated."""
    crowd = crowd_with_devices()
    put(crowd, "deviceclasses", make_class("extended", FULL, extended="nvidia.com/gpu"))
    crowd.cluster.edit("Node", None, "n2")["status"]["allocatable"]["nvidia.com/gpu"] = plugin
    await crowd.turns(2)
    trainer = {"device": "gpu", "nodes": trainers, "processesPerNode": 8}
    crowd.apply("one", trainers, trainer=trainer, rollout={"replicas": 1})
    inventory = DeviceInventory(crowd.cluster, crowd.feed.cache)
    for _ in range(6):
        await inventory.turn()
        await crowd.turns(2)
    assert {*crowd.on_nodes("one").values()} == nodes


async def test_what_was_known_of_devices_is_forgotten_when_no_job_wants_any() -> None:
    crowd = crowd_with_devices()
    inventory = DeviceInventory(crowd.cluster, crowd.feed.cache)
    apply(crowd, "one")
    await crowd.turns(3)
    await inventory.turn()
    assert crowd.feed.cache.devices.nodes and not crowd.feed.cache.devices.problem
    crowd.delete("one")
    await crowd.turns(3)
    await inventory.turn()
    assert not crowd.feed.cache.devices.nodes and crowd.feed.cache.devices.problem == NOT_LISTED


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NotFound(404, "no such resource"), "the API server does not serve resource.k8s.io/v1"),
        (ApiError(403, "resourceslices is forbidden"), "cannot be listed: "),
    ],
)
async def test_the_reason_is_named_why_devices_are_not_known(error: ApiError, why: str) -> None:
    class Refusing(FakeCluster):
        async def pages(self, *arguments: Any, **fields: Any) -> Any:
            raise error
            yield

    crowd = crowd_with_devices()
    apply(crowd, "one")
    await crowd.turns(3)
    for _ in range(3):
        await DeviceInventory(Refusing(), crowd.feed.cache).turn()
        await crowd.turns(3)
    placement = crowd.status("one").placement
    assert placement and why in placement.problem
