"""What a real API server says of pods that fail or do not end, with which the operator decides."""

from typing import Any

import kopf
import pytest

from apiserver.world import TOKEN, administrator
from e2e.control_plane import ControlPlane
from rljob_operator.cache.pods import parse_pod
from rljob_operator.kube.api import Object
from rljob_operator.kube.client import KubernetesApi
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.watches import Watches

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
