"""The patch that releases a pod, before a real API server: it is admitted once, for the right pod, beside whatever affinity is there."""

from typing import Any

import pytest

from apiserver.world import administrator
from e2e.control_plane import ControlPlane
from rljob_api import names
from rljob_operator.cache.pods import Pod, parse_pod
from rljob_operator.kube.api import ApiError
from rljob_operator.kube.client import KubernetesApi
from rljob_operator.schedulers.base import REQUIRED, operations

pytestmark = pytest.mark.slow
NAMESPACE = "default"
ZONE = {"key": "zone", "operator": "In", "values": ["z"]}
AFFINITIES: dict[str, dict[str, Any]] = {
    "none": {},
    "two-terms": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}] * 2}}},
    "preferred": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [ZONE]}}
            ]
        }
    },
}


async def gated(api: KubernetesApi, name: str, affinity: dict[str, Any]) -> Pod:
    meta = {"name": name, "namespace": NAMESPACE, "annotations": {names.ANNOTATION_TEMPLATE_HASH: "x"}}
    meta |= {"labels": names.labels("demo", names.ROLE_ROLLOUT)}
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": names.GATE}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec | ({"affinity": affinity} if affinity else {}),
    }
    return parse_pod(await api.create(pod))


@pytest.mark.parametrize("case", AFFINITIES)
async def test_a_gated_pod_is_pinned_and_released_once(plane: ControlPlane, case: str) -> None:
    api = administrator(plane)
    try:
        pod = await gated(api, f"gated-{case}", AFFINITIES[case])
        patch = operations(pod, "a", 1_000_000.0, head=True)
        wrong = [{"op": "test", "path": "/metadata/uid", "value": "another"}, *patch[1:]]
        with pytest.raises(ApiError) as refused:
            await api.patch("Pod", NAMESPACE, pod.name, wrong)
        assert refused.value.code == 422
        released = await api.patch("Pod", NAMESPACE, pod.name, patch)
        terms = released["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert all(term["matchFields"][0]["values"] == ["a"] for term in terms)
        assert parse_pod(released).gates == () and "managedFields" not in released["metadata"]
        assert parse_pod(released).ungated_at == 1_000_000.0
        heads = await api.listing("Pod", NAMESPACE, names.heads("demo", names.ROLE_ROLLOUT))
        assert pod.name in [found["metadata"]["name"] for found in heads.objects]
        with pytest.raises(ApiError) as again:
            await api.patch("Pod", NAMESPACE, pod.name, patch)
        assert again.value.code == 422
    finally:
        await api.close()
