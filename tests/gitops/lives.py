"""Every state that a user can see, from whole lives of a job in the simulator."""

import asyncio
import copy
from functools import cache
from typing import Any

from rljob_api.schema.crd import crd
from simulator.world import World

Seen = tuple[str, dict[str, Any]]
"""What happened last, and the object as a client reads it then."""

EVERY_STATE = {"Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Succeeded", "Failed"}


DEFAULT = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
"""Of a job's status."""


def read(world: World) -> dict[str, Any]:
    """With the defaults that the API server puts in."""
    return {"status": copy.deepcopy(DEFAULT), **copy.deepcopy(world.job)}


async def _until(world: World, seen: list[Seen], what: str, **goal: Any) -> None:
    seen.append((f"{what}, unobserved", read(world)))
    for _ in range(200):
        await world.turn()
        seen.append((what, read(world)))
        status = world.status
        number = status.attempt.number if status.attempt else 0
        reached = status.state == goal["state"] and number >= goal.get("attempt", 0)
        if reached and status.progress.step >= goal.get("step", 0):
            return
    raise AssertionError(f"{what}: never {goal}")


async def _a_long_life(seen: list[Seen]) -> None:
    world = World(steps=14)
    world.apply()
    await _until(world, seen, "applied", state="Running", step=2)
    world.kill_pod("demo-trainer-1")
    await _until(world, seen, "lost a pod", state="Running", attempt=2, step=4)
    world.request("n1", "suspend")
    await _until(world, seen, "suspend requested", state="Suspended")
    world.request("n2", "resume")
    await _until(world, seen, "resume requested", state="Running", attempt=3)
    world.edit_spec(image="trainer:next")
    await _until(world, seen, "edited", state="Succeeded")
    world.edit_spec(image="trainer:last")
    await _until(world, seen, "edited after the end", state="Succeeded")


async def _a_failure(seen: list[Seen]) -> None:
    world = World(steps=8)
    world.apply(lifecycle={"maxRestarts": 0})
    await _until(world, seen, "applied", state="Running", step=2)
    world.launcher(1).fail("application", "ValueError", world.now)
    await _until(world, seen, "raised", state="Failed")


async def _a_mistake(seen: list[Seen]) -> None:
    world = World(steps=8)
    world.apply(train={"steps": 8, "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatches": 3})
    await _until(world, seen, "applied with a mistake", state="Failed")
    world.edit_spec(train={"steps": 8, "promptsPerStep": 4, "samplesPerPrompt": 4})
    await _until(world, seen, "mended", state="Running")
    world.edit_spec(train={"steps": 8, "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatches": 3})
    await _until(world, seen, "spoilt while it runs", state="Running", step=4)


async def lives() -> list[Seen]:
    seen: list[Seen] = []
    for live in (_a_long_life, _a_failure, _a_mistake):
        await live(seen)
    return seen


@cache
def documents() -> list[Seen]:
    """Once for all tests."""
    return asyncio.run(lives())
