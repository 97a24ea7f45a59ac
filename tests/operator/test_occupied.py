"""A new job does not take the directory of checkpoints from one that has not ended."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.status import JobStatus
from rljob_operator.model.occupied import AGAIN
from simulator.objects import job_object
from simulator.world import NAMESPACE, World

REFUSED = "spec.checkpoint.path = /data/run: is where job demo writes, which has not ended"


def on(claim: str, path: str = "/data/run") -> dict[str, Any]:
    volume = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": claim}}}
    return {"volumes": [volume], "checkpoint": {"path": path}}


async def with_a_second(**changes: Any) -> World:
    """A job runs, and another one is applied."""
    world = World()
    world.apply(**on("shared"))
    await world.until(state="Running")
    world.cluster.put(job_object("second", raw_spec(**changes)))
    await turns(world, 3)
    return world


async def turns(world: World, count: int) -> None:
    """Of both jobs."""
    for _ in range(count):
        await world.turn()
        await world.pass_over("second")


def second(world: World) -> JobStatus:
    return JobStatus.model_validate(world.cluster.objects[("RLJob", NAMESPACE, "second")]["status"])


def pods_of_second(world: World) -> list[str]:
    names = (pod["metadata"]["name"] for pod in world.cluster.pods(NAMESPACE))
    return [name for name in names if name.startswith("second-")]


async def test_a_job_with_the_directory_of_one_that_runs_is_refused_by_name_and_gets_no_pods() -> None:
    world = await with_a_second(**on("shared"))
    assert second(world).state == "Failed"
    assert REFUSED in second(world).message
    assert pods_of_second(world) == []
    assert world.status.state == "Running"


@pytest.mark.parametrize("own", [on("other"), on("shared", "/data/run2"), {}])
async def test_a_job_with_a_directory_or_volume_of_its_own_gets_pods(own: dict[str, Any]) -> None:
    world = await with_a_second(**own)
    assert second(world).state == "Pending"
    assert "second-trainer-0" in pods_of_second(world)


@pytest.mark.parametrize("end", ["deleted", "succeeded"])
async def test_a_job_that_was_refused_gets_pods_when_the_other_has_ended(end: str) -> None:
    world = await with_a_second(**on("shared"))
    if end == "deleted":
        world.cluster.remove(world.job)
        world.feed.deliver()
        for _ in range(int(AGAIN) + 2):
            world.elapse(1)
            await world.pass_over("second")
    else:
        await world.until(state="Succeeded")
        await turns(world, int(AGAIN) + 2)
    assert REFUSED not in second(world).message
    assert second(world).state == "Pending"


async def test_a_job_that_has_run_keeps_its_directory_whoever_else_names_it() -> None:
    world = await with_a_second(**on("shared"))
    world.restart_container(0)
    await turns(world, 20)
    assert world.status.attempt and world.status.attempt.number == 2, "it has restarted"
    assert second(world).state == "Failed"
