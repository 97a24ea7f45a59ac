"""A real Kueue next to the local cluster: what it admits trains in real pods, and what it preempts saves, waits and trains on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import kueue
from e2e.cluster.binaries import KUEUE, is_built
from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import Object, wait_for
from e2e.local_plane import LocalPlane
from rljob_api import names

pytestmark = [pytest.mark.extra, pytest.mark.skipif(not is_built(KUEUE), reason="`make kueue` compiles it")]

HIGH = "kueue-high"
"""A pod, and its priority class."""
PODS = "2"
"""The quota: those of one job."""
SECONDS = 900
"""Many times what anything takes."""
MOST_ATTEMPTS = 3
"""Kueue may delete the pods that replace evicted ones, too: docs/placement.md says when."""
LEFT = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration", "clusterrole", "clusterrolebinding", "crd")
"""Kinds without a namespace of which Kueue has objects."""


@pytest.fixture
def queue(empty_lab: Lab, tmp_path: Path) -> Iterator[None]:
    """Kueue, a quota of two pods and a queue for it in the tests' namespace. Nothing of it stays."""
    if empty_lab.provider.name != "local":
        pytest.skip("Kueue runs beside the control plane of the local cluster")
    plane = LocalPlane(empty_lab.system, tmp_path)
    high: Object = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}}
    try:
        kueue.start(plane)
        kueue.open_cluster(plane, {"pods": PODS, "cpu": "1k", "memory": "1Ti"})
        kueue.open_queue(plane, empty_lab.kube.namespace)
        empty_lab.kube.apply(high | {"value": 1000})
        yield
    finally:
        end_jobs(empty_lab)
        plane.stop()
        remove(empty_lab)


def end_jobs(lab: Lab) -> None:
    """Kueue keeps their pods by a finalizer, and the operator lets them go."""
    lab.kube.kubectl("delete", "pod", HIGH, "--ignore-not-found")
    lab.kube.kubectl("delete", "rljob", "--all", f"--timeout={SECONDS}s", timeout=SECONDS)
    wait_for("pods to end", lambda: not lab.kube.list("pod", names.LABEL_JOB), SECONDS)


def remove(lab: Lab) -> None:
    """Webhooks first: without Kueue they would refuse every pod."""
    for kind in LEFT:
        found = lab.kube.kubectl("get", kind, "-o", "name").split()
        ours = [name for name in found if "kueue" in name or "/manager-role" in name]
        if kind == "crd":
            strip_finalizers(lab, ours)
        if ours:
            lab.kube.kubectl("delete", *ours, "--timeout=60s")
    lab.kube.kubectl("delete", "namespace", kueue.NAMESPACE, "--wait=false", "--ignore-not-found")
    lab.kube.kubectl("delete", "priorityclass", HIGH, "--ignore-not-found")


def strip_finalizers(lab: Lab, crds: list[str]) -> None:
    """Of objects that only Kueue would let go."""
    for crd in crds:
        kind = crd.partition("/")[2]
        for line in lab.kube.kubectl(
            "get", kind, "-A", "-o", "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}"
        ).splitlines():
            namespace, _, name = line.rpartition(" ")
            where = ("-n", namespace) if namespace else ()
            lab.kube.kubectl("patch", kind, name, *where, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def low_job() -> Object:
    """A gang of two trainers, which may finish their step and save however busy the machine is."""
    return {
        "of": "sft",
        "train": {"steps": 100_000, "epochs": None},
        "trainer": {"template": {"terminationGracePeriodSeconds": SECONDS}},
        "evaluation": {"everySteps": 0},
        "checkpoint": {"everySteps": 1000},
        "scheduling": {"backend": "kueue", "queue": kueue.QUEUE},
    }


def high_pod(image: str) -> Object:
    """Of somebody else, in the same queue."""
    container = {"name": "main", "image": image, "command": ["sleep", "infinity"]}
    spec = {"priorityClassName": HIGH, "terminationGracePeriodSeconds": 1, "containers": [container]}
    meta = {"name": HIGH, "labels": {"kueue.x-k8s.io/queue-name": kueue.QUEUE}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_a_job_that_kueue_preempts_saves_its_last_step_and_trains_on_when_the_quota_is_free(
    empty_lab: Lab, queue: None
) -> None:
    kube = empty_lab.kube
    low = empty_lab.start_untrained("kueue-low", **low_job())
    trained = low.wait_for_step(3, SECONDS)
    assert trained.attempt and trained.attempt.number == 1
    kube.apply(high_pod(empty_lab.provider.trainer_image))
    left = low.wait("its quota is taken", lambda s: "held back by kueue.x-k8s.io/admission" in s.message, SECONDS)
    assert left.checkpoint.latest and left.checkpoint.latest.step == left.progress.step, "it has saved its last step"
    wait_for("the other pod", lambda: kube.get("pod", HIGH)["status"]["phase"] == "Running", SECONDS)
    kube.kubectl("delete", "pod", HIGH)
    again = low.wait("it trains on", lambda s: s.progress.step > left.progress.step, SECONDS)
    assert again.progress.started_from is not None and again.progress.started_from >= left.progress.step
    assert (again.lost_steps, again.restarts.counted, again.last_failure) == (0, 0, None)
    assert again.attempt and 2 <= again.attempt.number <= MOST_ATTEMPTS
    assert again.restarts.uncounted == drained(low) == again.attempt.number - 1


def drained(job: Job) -> int:
    """Attempts that have ended because Kueue deleted a pod of theirs."""
    uid = job.object()["metadata"]["uid"]
    said = [event["message"] for event in job.kube.list("event") if event["involvedObject"].get("uid") == uid]
    return sum("told to drain (PodDeleting)" in text for text in said)
