"""examples/autoscaling before the HPA controller of Kubernetes, with a stub of the custom metrics API in the place of an adapter."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from apiserver.custom_metrics import CustomMetrics
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane, available
from simulator.objects import job_object

pytestmark = pytest.mark.extra

NAMESPACE = "default"
EXAMPLE = yaml.safe_load((Path(__file__).parents[2] / "examples/autoscaling/hpa.yaml").read_text())
NAME = EXAMPLE["spec"]["scaleTargetRef"]["name"]
METRIC = EXAMPLE["spec"]["metrics"][0]["object"]["metric"]["name"]
JOB = f"/apis/rljob.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs"
HPA = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SELECTOR = "rljob.dev/name=demo,rljob.dev/role=rollout"
SECONDS = 120.0
"""Many times what any answer takes: the controller looks every second."""


@dataclass(frozen=True)
class Scaled:
    plane: ControlPlane
    metrics: CustomMetrics

    @property
    def replicas(self) -> int:
        count: int = self.plane.call("GET", f"{JOB}/{NAME}")["spec"]["rollout"]["replicas"]
        return count

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = (
            self.plane.call("GET", f"{HPA}/{EXAMPLE['metadata']['name']}").get("status", {}).get("conditions", [])
        )
        return next((c for c in conditions if c["type"] == kind), {"status": "", "reason": ""})

    def begin(self, replicas: int, **behavior: Any) -> None:
        """The example with other times, for a job that has so many rollouts, all of them ready."""
        for i in range(replicas):
            labels = dict(pair.split("=") for pair in SELECTOR.split(","))
            pod = {
                "metadata": {"name": f"demo-rollout-{i}", "labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            self.plane.call("POST", PODS, pod)
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            found = self.plane.call("GET", f"{PODS}/demo-rollout-{i}")
            self.plane.call("PUT", f"{PODS}/demo-rollout-{i}/status", found | {"status": ready})
        job = job_object(NAME, raw_spec(rollout={"replicas": replicas}), NAMESPACE)
        found = self.plane.call("POST", JOB, job)
        status = {"observedGeneration": 1, "state": "Running", "rollout": {"ready": replicas, "selector": SELECTOR}}
        self.plane.call("PUT", f"{JOB}/{NAME}/status", found | {"status": status})
        self.plane.call("POST", HPA, EXAMPLE | {"spec": EXAMPLE["spec"] | {"behavior": behavior}})

    def looks(self, times: int = 3) -> None:
        """Wait until the controller has asked so many times more."""
        before = self.metrics.asked
        until(lambda: self.metrics.asked >= before + times)


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Scaled]:
    if not (available() and (BIN / "kube-controller-manager").exists()):
        pytest.skip("the programs of Kubernetes are not built: `make cluster-up` builds them")
    path = f"namespaces/{NAMESPACE}/rljobs.rljob.dev/{NAME}/{METRIC}"
    with ControlPlane(tmp_path / "plane") as plane, CustomMetrics(tmp_path, path) as metrics:
        plane.install_crd()
        metrics.register(plane, NAMESPACE)
        flags = ("--leader-elect=false", "--secure-port=0", "--horizontal-pod-autoscaler-sync-period=1s")
        only = "--controllers=horizontal-pod-autoscaler-controller"
        plane.spawn(
            "kube-controller-manager", BIN / "kube-controller-manager", f"--kubeconfig={plane.kubeconfig}", only, *flags
        )
        yield Scaled(plane, metrics)


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.2)


def one(seconds: int) -> dict[str, Any]:
    return {"policies": [{"type": "Pods", "value": 1, "periodSeconds": seconds}], "stabilizationWindowSeconds": 0}


def test_a_trainer_that_waits_gets_a_rollout_and_one_that_does_not_gives_one_back(scaled: Scaled) -> None:
    scaled.begin(3, scaleUp=one(600), scaleDown=one(600))
    until(lambda: scaled.condition("ScalingActive")["reason"] == "FailedGetObjectMetric")
    assert scaled.replicas == 3, "without a metric everything stays"
    scaled.metrics.value = "100m"
    until(lambda: scaled.condition("ScalingActive")["status"] == "True")
    scaled.looks()
    assert scaled.replicas == 3, "a tenth of a step is what is wanted"
    scaled.metrics.value = "600m"
    until(lambda: scaled.replicas == 4)
    scaled.looks()
    assert scaled.replicas == 4, "one in a period, though six times as many are computed"
    scaled.metrics.value = "0"
    until(lambda: scaled.replicas < 4)
    scaled.looks()
    assert scaled.replicas == 2, "one less than at the beginning of the period"


def test_there_are_never_more_or_fewer_than_the_example_says(scaled: Scaled) -> None:
    most, least = EXAMPLE["spec"]["maxReplicas"], EXAMPLE["spec"]["minReplicas"]
    at_once = {"policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}], "stabilizationWindowSeconds": 0}
    scaled.metrics.value = "900m"
    scaled.begin(3, scaleUp=at_once, scaleDown=at_once)
    until(lambda: scaled.replicas == most)
    scaled.looks()
    assert scaled.replicas == most
    scaled.metrics.value = "0"
    until(lambda: scaled.replicas == least)
    scaled.looks()
    assert scaled.replicas == least
