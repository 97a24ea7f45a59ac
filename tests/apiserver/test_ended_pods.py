"""What a real API server says of pods that fail or do not end, with which the operator decides."""

from contextlib import suppress
from functools import partial
from typing import Any

import kopf
import pytest

from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from apiserver.world import TOKEN, administrator
from e2e.control_plane import ControlPlane
from rljob_api.backends import FINALIZERS
from rljob_operator.cache.pods import parse_pod
from rljob_operator.kube.api import NotFound, Object
from rljob_operator.kube.client import KubernetesApi
from rljob_operator.kube.credentials import Credentials
from rljob_operator.watch.reflector import Watches

pytestmark = pytest.mark.slow
NAMESPACE = "default"
REASON, MESSAGE = "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi."


async def on_a_node(api: KubernetesApi, name: str, **meta: Any) -> Object:
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "a"}
    meta = {"name": name, "namespace": NAMESPACE} | meta
    return await api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


async def test_the_deletion_of_a_failed_pod_still_says_why_it_failed(plane: ControlPlane) -> None:
    """Its StatefulSet deletes it as soon as it has failed, and the API server then waits for no kubelet."""
    api = administrator(plane)
    watches = Watches(Credentials(lambda: kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)))
    try:
        created = await on_a_node(api, "evicted")
        failed = created | {"status": {"phase": "Failed", "reason": REASON, "message": MESSAGE}}
        await api.replace(failed, "status")
        await api.delete("Pod", NAMESPACE, "evicted", created["metadata"]["uid"])
        async for event in watches.events("Pod", NAMESPACE, "", created["metadata"]["resourceVersion"]):
            if event.type == "DELETED" and event.object["metadata"]["name"] == "evicted":
                break
        pod = parse_pod(event.object)
        assert (pod.uid, pod.node, pod.failed) == (created["metadata"]["uid"], "a", f"{REASON}: {MESSAGE}")
    finally:
        await watches.close()
        await api.close()


async def test_a_deleted_pod_says_until_when_it_has_to_end_and_what_keeps_it(plane: ControlPlane) -> None:
    api = administrator(plane)
    try:
        created = await on_a_node(api, "kept", finalizers=["example.com/keep"])
        assert (parse_pod(created).delete_by, parse_pod(created).finalizers) == (None, ("example.com/keep",))
        await api.delete("Pod", NAMESPACE, "kept", created["metadata"]["uid"])
        live = await api.get("Pod", NAMESPACE, "kept")
        pod = parse_pod(live)
        assert pod.deleting and pod.delete_by is not None
        grace = live["metadata"]["deletionGracePeriodSeconds"]
        assert grace == live["spec"]["terminationGracePeriodSeconds"] == 30
        assert grace - 1 <= pod.delete_by - pod.created <= grace + 60, "the end of the grace period, not its start"
        await api.patch("Pod", NAMESPACE, "kept", [{"op": "remove", "path": "/metadata/finalizers"}])
        await api.delete("Pod", NAMESPACE, "kept", created["metadata"]["uid"], force=True)
    finally:
        await api.close()


async def test_pods_of_a_deleted_job_that_kueue_keeps_are_let_go_as_each_has_ended(plane: ControlPlane) -> None:
    async with lab(plane, "kept", Faults()) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        first, *others = await delete_with_kept_pods(world)
        for pod in (first, *others):
            assert await world.exists("Pod", pod), "its container runs"
            await end(world, pod)
            await world.turn_until(partial(is_gone, world, pod), f"{pod} is gone")


async def is_gone(world: Lab, pod: str) -> bool:
    return not await world.exists("Pod", pod)


async def delete_with_kept_pods(world: Lab) -> list[str]:
    """The job, and its pods as the garbage collector does. Returns their names."""
    pods = (await world._api.listing("Pod", world.namespace)).objects
    for pod in pods:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        await world.edit_child("Pod", name, {"metadata": {"finalizers": [*FINALIZERS]}})
        await world._api.delete("Pod", world.namespace, name, uid)
    await world.remove_child("RLJob", "demo")
    return [pod["metadata"]["name"] for pod in pods]


async def end(world: Lab, name: str) -> None:
    """As its kubelet does, which then needs no time to end it any more."""
    where = f"/api/v1/namespaces/{world.namespace}/pods/{name}/status"
    ended = {"status": {"phase": "Failed", "containerStatuses": None}}
    await world._request("PATCH", "Pod", where, ended, "application/merge-patch+json")
    with suppress(NotFound):
        await world.remove_child("Pod", name)
