"""Quantities, which the API server writes in another form than ours."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_operator.reconcile.writer import covers
from simulator.canonical import quantity
from simulator.cluster import FakeCluster
from simulator.objects import job_object
from simulator.operating import operating
from simulator.world import NAMESPACE

WRITTEN: dict[str, Any] = {
    "resources": {
        "requests": {"cpu": "0.5", "memory": "1024Mi", "ephemeral-storage": "1.5Gi", "example.com/a": 1000},
        "limits": {"cpu": "1000m", "memory": "2000Mi", "hugepages-2Mi": "4096Ki", "ephemeral-storage": "2000M"},
    },
    "nodeSelector": {},
    "tolerations": [{"operator": "Exists", "value": ""}],
    "env": [
        {"name": "EMPTY", "value": ""},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1000m"}}},
    ],
}
SCRATCH: dict[str, Any] = {"name": "s", "mountPath": "/s", "source": {"emptyDir": {"sizeLimit": "0.5Gi"}}}
CLAIM: dict[str, Any] = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1024Gi"}},
}
EPHEMERAL = {"name": "e", "mountPath": "/data", "source": {"ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}}}


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_values_that_the_api_server_writes_in_another_form_cost_no_requests(backend: str) -> None:
    cluster = FakeCluster()
    roles = {"trainer": {"device": "cpu", "shmSize": "1024Mi", "template": WRITTEN}, "rollout": {"template": WRITTEN}}
    spec = raw_spec(**roles, volumes=[SCRATCH, EPHEMERAL], scheduling={"backend": backend})
    cluster.put(job_object("demo", spec))
    operator = operating(cluster)
    await operator((NAMESPACE, "demo"))
    assert "StatefulSet demo-trainer" in " ".join(cluster.writes)
    made = cluster.objects[("StatefulSet", NAMESPACE, "demo-trainer")]["spec"]["template"]["spec"]
    assert made["containers"][0]["resources"]["requests"] == {
        "cpu": "500m",
        "memory": "1Gi",
        "ephemeral-storage": "1536Mi",
        "example.com/a": "1k",
    }
    await operator((NAMESPACE, "demo"))
    asked = cluster.requests
    for _ in range(5):
        await operator((NAMESPACE, "demo"))
    assert cluster.requests == asked


async def test_a_quantity_that_somebody_changes_is_corrected() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec(trainer={"device": "cpu", "template": WRITTEN})))
    await operating(cluster)((NAMESPACE, "demo"))
    live = cluster.edit("StatefulSet", NAMESPACE, "demo-trainer")
    resources = live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    resources["cpu"] = "501m"
    await operating(cluster)((NAMESPACE, "demo"))
    live = cluster.edit("StatefulSet", NAMESPACE, "demo-trainer")
    assert live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("0.5Gi", "512Mi"),
        ("1.5Ki", "1536"),
        ("100Ki", "100Ki"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("0", "0"),
        ("0Gi", "0"),
        ("1e3", "1e3"),
        ("0.1m", "100u"),
        ("3000Gi", "3000Gi"),
        ("1536Mi", "1536Mi"),
        ("0.0000000000001", "1n"),
        ("0.0000000011", "2n"),
        ("9" * 32, "9223372036854775807"),
    ],
)
def test_the_fake_api_server_writes_quantities_as_the_real_one_does(written: str, stored: str) -> None:
    assert quantity(written) == stored
    assert covers({"sizeLimit": stored}, {"sizeLimit": written})
    assert not covers({"name": stored}, {"name": written}) or written == stored


def test_amounts_are_compared_exactly() -> None:
    assert not covers({"requests": {"cpu": "1m"}}, {"requests": {"cpu": "0.1m"}})
    assert not covers({"requests": {}}, {"requests": {"cpu": "1"}})
    assert not covers({"sizeLimit": "no quantity"}, {"sizeLimit": "1Gi"})
