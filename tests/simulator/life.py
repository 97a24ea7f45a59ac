"""A whole life of a job, and what of it must not depend on when the operator died."""

from collections.abc import Awaitable, Callable
from typing import Any

from rljob_api.policy import DEFAULT_POLICY, JobPolicy
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


Story = Callable[[World], Awaitable[object]]
"""What happens in a world, and what of its end must not depend on when the operator died."""


async def kill_after_writes(
    every: int, story: Story | None = None, steps: int = 12, policy: JobPolicy = DEFAULT_POLICY, **changes: Any
) -> object:
    """An operator that is killed after the first write of a story, after that and `every` more, and so on, ends each like the one that was not.

    Returns that end. `story`: the whole life above, of a job with these `changes`, if there is no other."""

    async def life(world: World) -> object:
        return end(await live(world, **changes))

    story = story or life
    undisturbed = World(steps=steps, policy=policy)
    expected = await story(undisturbed)
    for crash_after in range(1, len(undisturbed.cluster.writes), every):
        world = World(steps=steps, policy=policy)
        world.cluster.crash_after = crash_after
        assert await story(world) == expected, f"killed after {world.cluster.writes[crash_after - 1]}"
        assert world.crashes == 1
    return expected


def end(world: World) -> tuple[object, ...]:
    s = world.status
    last = s.last_failure and (s.last_failure.attempt, s.last_failure.reason, s.last_failure.pod)
    latest = s.checkpoint.latest and s.checkpoint.latest.step
    return s.outcome, s.attempt and s.attempt.number, s.restarts.total, last, latest, s.progress.step
