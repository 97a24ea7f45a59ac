"""spec.managedBy: the operator leaves a job alone that another controller runs, as Kueue does that copies it to another cluster."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api import names
from rljob_api.rules import validate
from rljob_operator.cache.cluster import ClusterCache
from simulator.objects import copied
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
JOB = ("RLJob", NAMESPACE, "demo")


async def test_a_job_of_another_controller_gets_no_children_no_status_and_no_event() -> None:
    world = World()
    world.apply(managedBy=MULTIKUEUE)
    before = copied(world.job)
    for _ in range(5):
        await world.turn()
    world.request("n1", "suspend")
    world.restart_operator()
    for _ in range(5):
        await world.turn()
    assert {key for key in world.cluster.objects if key[0] != "Node"} == {JOB}
    assert "status" not in world.job
    assert world.job["metadata"].keys() == before["metadata"].keys(), "no finalizer"


async def test_a_job_that_names_the_operator_is_run_as_one_that_names_nobody() -> None:
    world = World()
    world.apply(managedBy=names.CONTROLLER)
    await world.until(state="Succeeded")


async def test_a_status_that_another_controller_writes_stays_and_counts_for_nothing_here() -> None:
    """It is that of a job in another cluster, with nodes and GPUs of that cluster."""
    elsewhere = World(steps=10**6)
    elsewhere.apply()
    await elsewhere.until(state="Running", step=2)
    world = World()
    world.apply(managedBy=MULTIKUEUE)
    world.cluster.edit(*JOB)["status"] = status = copied(elsewhere.job["status"])
    for _ in range(5):
        await world.turn()
    assert world.job["status"] == status
    assert not any("demo" in sample.labels.values() for sample in samples_of(world))


async def test_a_job_of_another_controller_in_the_place_of_ours_makes_the_operator_forget_ours() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=2)
    cache = ClusterCache(lambda: world.now)
    cache.of_kind("RLJob").put(world.job)
    world.cluster.remove(world.job)
    world.apply(managedBy=MULTIKUEUE)
    assert cache.of_kind("RLJob").put(world.job) == {(NAMESPACE, "demo")}, "its state is dropped"
    assert len(cache.jobs) == 0
    for _ in range(10):
        await world.turn()
    assert "status" not in world.job


@pytest.mark.parametrize("wrong", ["multikueue", "Kueue.io/x", "kueue.x-k8s.io/", "/multikueue", "a.b/" + "c" * 60, 3])
def test_a_controller_is_named_by_a_domain_and_a_path(wrong: Any) -> None:
    (violation,) = validate(raw_spec(managedBy=wrong), "demo").violations
    assert violation.field == "spec.managedBy"
    assert validate(raw_spec(managedBy=MULTIKUEUE), "demo").violations == ()
