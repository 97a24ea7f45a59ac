"""A whole life of a job, and what of it must not depend on when the operator died."""

from typing import Any

from simulator.world import World


async def live(world: World, **changes: Any) -> World:
    """Apply, run, lose a pod, fail once, suspend, resume, succeed."""
    world.apply(**changes)
    await world.until(state="Running", step=3)
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", step=5, attempt=2)
    world.launcher(1).fail("application", "ValueError", world.now)
    await world.until(state="Running", step=7, attempt=3)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    world.request("n2", "resume")
    await world.until(state="Succeeded")
    return world


async def kill_after_writes(every: int, **changes: Any) -> None:
    """An operator that is killed after the first write of this life, after that and `every` more, and so on, ends each like the one that was not."""
    undisturbed = await live(World(steps=12), **changes)
    for crash_after in range(1, len(undisturbed.cluster.writes), every):
        world = World(steps=12)
        world.cluster.crash_after = crash_after
        ended = end(await live(world, **changes))
        assert ended == end(undisturbed), f"killed after {world.cluster.writes[crash_after - 1]}"
        assert world.crashes == 1


def end(world: World) -> tuple[object, ...]:
    s = world.status
    last = s.last_failure and (s.last_failure.attempt, s.last_failure.reason, s.last_failure.pod)
    latest = s.checkpoint.latest and s.checkpoint.latest.step
    return s.outcome, s.attempt and s.attempt.number, s.restarts.total, last, latest, s.progress.step
