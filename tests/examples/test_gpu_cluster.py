"""What benchmarks/gpu_cluster applies to a machine that is lent for minutes is valid before it gets there."""

import pytest

from benchmarks.gpu_cluster import manifests
from rljob_api.rules import validate
from rljob_api.spec.job import RLJobSpec

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
