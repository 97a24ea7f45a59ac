"""Devices of Dynamic Resource Allocation with the `builtin` backend: a real control plane, its controller of claims and kube-scheduler, and a driver
whose ResourceSlices the test makes. Only kubelets are missing, so a pod that is deleted is gone when the test says so."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from api.specs import raw_spec
from apiserver.tenant import Tenant, operated, until
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane, available
from placement.device_objects import FULL, make_class, make_slice, make_template
from rljob_placement.devices import API, IMPLICIT
from simulator.objects import job_object

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not available() or not (BIN / "kube-scheduler").exists(), reason="`make cluster-up` builds kube-scheduler"
    ),
]

CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "four"}]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With extended resources that devices stand for."""
    with operated(tmp_path_factory.mktemp("devices"), "DRAExtendedResource") as found:
        yield found


class Site(Tenant):
    """Nodes with eight devices each."""

    def add_devices(self, count: int, gpus: int = 8) -> None:
        self.add_nodes(count)
        for number in range(count):
            self.create("resourceslices", make_slice(f"{self.name}-{number}", gpus))

    def create(self, plural: str, obj: dict[str, Any]) -> None:
        meta = obj["metadata"]
        scope = f"/namespaces/{self.name}" if meta.pop("namespace", "") else ""
        kind = {"resourceslices": "ResourceSlice", "deviceclasses": "DeviceClass"}.get(plural, "ResourceClaimTemplate")
        self.plane.call("POST", f"/apis/{API}{scope}/{plural}", {"apiVersion": API, "kind": kind, **obj})

    def ask(self, name: str, trainers: int, resource: str, **template: Any) -> None:
        """A job with four GPUs for each pod."""
        pod = {"template": {"nodeSelector": {"tenant": self.name}} | template}
        trainer = {"device": "gpu", "nodes": trainers, "processesPerNode": 4, "resourceName": resource} | pod
        spec = raw_spec(
            trainer=trainer, rollout={"replicas": 1, "tensorParallel": 4} | pod, scheduling={"backend": "builtin"}
        )
        self.plane.call("POST", self._jobs, job_object(name, spec, self.name))

    def nodes(self, job: str) -> Counter[str]:
        """Number of its pods on each node."""
        pods = [*self.pods(job), *self.pods(job, "rollout")]
        return Counter(pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"])

    def claims(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.call("GET", f"/apis/{API}/namespaces/{self.name}/resourceclaims")[
            "items"
        ]
        return found

    def held(self) -> Counter[str]:
        """Number of devices that claims hold, by node."""
        results = [
            c["status"]["allocation"]["devices"]["results"]
            for c in self.claims()
            if "allocation" in c.get("status", {})
        ]
        return Counter(one["pool"] for found in results for one in found)


def test_a_gang_with_claims_gets_nodes_with_free_devices_and_the_next_waits_by_name_until_they_are_free(
    plane: ControlPlane,
) -> None:
    site = Site(plane, "claims")
    site.create("deviceclasses", make_class("gpu", FULL))
    site.create("resourceclaimtemplates", make_template("four", {"deviceClassName": "gpu", "count": 4}))
    site.add_devices(2)
    site.ask("one", 2, "", resourceClaims=CLAIMS)
    until(lambda: sum(site.nodes("one").values()) == 3)
    assert site.held() == {node: 4 * pods for node, pods in site.nodes("one").items()}
    pod = site.pods("one")[0]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    site.ask("two", 1, "", resourceClaims=CLAIMS)
    wanted = f"with 4 {IMPLICIT}gpu each"
    until(lambda: wanted in site.condition("two", "Placed").get("message", ""))
    assert not site.nodes("two")
    site.delete("one")
    until(lambda: sum(site.nodes("two").values()) == 2, site.reap)
    until(lambda: sum(site.held().values()) == 8)


def test_an_extended_resource_that_devices_stand_for_is_counted_by_them(plane: ControlPlane) -> None:
    site = Site(plane, "extended")
    site.create("deviceclasses", make_class("gpu2", FULL, extended="example.com/gpu"))
    site.add_devices(2)
    site.ask("one", 2, "example.com/gpu")
    until(lambda: sum(site.nodes("one").values()) == 3)
    assert site.held() == {node: 4 * pods for node, pods in site.nodes("one").items()}
    site.ask("two", 1, "example.com/gpu")
    wanted = "with 4 example.com/gpu each"
    until(lambda: wanted in site.condition("two", "Placed").get("message", ""))


def test_devices_that_cannot_be_counted_are_refused_by_name(plane: ControlPlane) -> None:
    site = Site(plane, "uncounted")
    all_of_them = {"deviceClassName": "gpu", "allocationMode": "All"}
    site.create("resourceclaimtemplates", make_template("four", all_of_them))
    site.ask("one", 2, "", resourceClaims=CLAIMS)
    why = "ResourceClaimTemplate four: request r0 asks for no number of devices"
    until(lambda: why in site.condition("one", "Placed").get("message", ""))
