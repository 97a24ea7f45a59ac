"""What benchmarks/gpu_cluster applies to a machine that is lent for minutes is valid before it gets there."""

from collections.abc import Sequence

import pytest

from benchmarks.gpu_cluster import manifests
from benchmarks.gpu_cluster.preemption import faults
from rljob_api.rules import validate
from rljob_api.spec.job import RLJobSpec
from rljob_api.status import JobStatus

MOUNTS = manifests.mounts_of("torch=/machine/torch:/opt/torch driver=/machine/driver:/usr/local/nvidia")


@pytest.mark.parametrize("layout", [*manifests.LAYOUTS, manifests.CPU])
def test_every_layout_is_valid(layout: str) -> None:
    spec = manifests.job(layout, layout, 20, MOUNTS)["spec"]
    assert validate(spec, layout).violations == ()


@pytest.mark.parametrize(
    ("layout", "trainers", "rollouts"),
    [
        ("colocated", (1, 1), (0, 1)),
        ("separate", (1, 1), (1, 1)),
        ("two-pods", (2, 1), (0, 1)),
        ("tensor-parallel", (1, 2), (0, 1)),
    ],
)
def test_pods_and_gpus_of_each_are_those_of_a_machine_with_two(
    layout: str, trainers: tuple[int, int], rollouts: tuple[int, int]
) -> None:
    spec = RLJobSpec.model_validate(manifests.job(layout, layout, 20, MOUNTS)["spec"])
    assert (spec.trainer.nodes, spec.trainer.processes_per_node) == trainers
    assert (spec.rollout.replicas, spec.rollout.tensor_parallel) == rollouts


def test_a_mount_is_a_claim_that_pods_read_and_the_data_one_that_they_write() -> None:
    spec = manifests.job("colocated", "a", 20, MOUNTS)["spec"]
    assert {v["name"]: (v["mountPath"], v["readOnly"]) for v in spec["volumes"]} == {
        "data": ("/data", False),
        "torch": ("/opt/torch", True),
        "driver": ("/usr/local/nvidia", True),
    }
    objects = manifests.volumes(MOUNTS, "/machine/data")
    paths = {o["metadata"]["name"]: o["spec"]["hostPath"]["path"] for o in objects if o["kind"] == "PersistentVolume"}
    assert paths == {"data": "/machine/data", "torch": "/machine/torch", "driver": "/machine/driver"}
    assert {o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"} == set(paths)


def saved(step: int) -> dict[str, object]:
    return {"checkpoint": {"latest": {"step": step, "attempt": 1, "path": f"/data/{step}"}}}


LEFT = {"progress": {"step": 12}} | saved(12)
RESUMED = {"progress": {"step": 13, "startedFrom": 12}}


def test_a_job_that_was_preempted_and_is_as_if_it_had_never_waited_has_no_fault() -> None:
    assert faults(JobStatus.model_validate(LEFT), JobStatus.model_validate(RESUMED), range(1, 14)) == []


@pytest.mark.parametrize(
    ("left", "resumed", "steps", "said"),
    [
        (saved(10), {}, range(1, 14), "saved its last step 12"),
        ({"checkpoint": {}}, {}, range(1, 14), "saved its last step 12"),
        ({}, {"progress": {"step": 13, "startedFrom": 10}}, range(1, 14), "began again at step 12"),
        ({}, {"lostSteps": 2}, range(1, 14), "lost no step"),
        ({}, {"restarts": {"total": 1}}, range(1, 14), "counted no restart"),
        ({}, {}, range(1, 13), "has metrics of every step up to 12 and of a later one"),
        ({}, {}, [*range(1, 12), 13], "has metrics of every step up to 12 and of a later one"),
        ({}, {}, [*range(1, 13), 12, 13], "has metrics of every step up to 12 and of a later one"),
    ],
)
def test_whatever_a_preempted_job_has_lost_is_named(
    left: dict[str, object], resumed: dict[str, object], steps: Sequence[int], said: str
) -> None:
    before, after = JobStatus.model_validate(LEFT | left), JobStatus.model_validate(RESUMED | resumed)
    assert faults(before, after, steps) == [f"not so: {said}"]
