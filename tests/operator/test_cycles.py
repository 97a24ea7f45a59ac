"""What a scheduling cycle sees of a job is what the job asks for itself."""

import pytest

from benchmarks.soak import Subject, subjects
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from simulator.world import NAMESPACE

KEY = (NAMESPACE, "demo")
SHAPES = ("rl", "rl with servers of two pods")
SECONDS = 150


def edit(subject: Subject) -> None:
    """A user changes the spec, of which some applies at once and some with the next attempt."""
    world, random = subject.world, subject.random
    spec, pods = world.job["spec"], random.randint(1, 3)
    changes = [{"image": f"another:{world.elapsed}"}, {"trainer": spec["trainer"] | {"nodes": pods}}]
    changes += [{"suspend": True}, {"rollout": spec["rollout"] | {"replicas": pods}}]
    world.edit_spec(**random.choice(changes))
    subject.later(lambda: world.edit_spec(suspend=False))


async def differences(subject: Subject) -> int:
    """Moments at which a cycle would plan something else for the job."""
    world, found = subject.world, 0
    for _ in range(SECONDS):
        await subject.second()
        if subject.random.random() < 0.1:
            subject.suffer()
        if subject.random.random() < 0.05:
            edit(subject)
        if entry := world.feed.cache.jobs.get(KEY):
            snapshot = await world.operator._observer.snapshot(KEY, entry.value, world.now)
            own = world.operator._scheduler._request(snapshot)
            found += SchedulerCache(world.feed.cache).pending(world.now, ()) != ([own] if own else [])
    return found


@pytest.mark.parametrize("seed", [8, 9])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_cycle_plans_for_a_job_what_it_asks_for_in_its_own_reconcile(shape: str, seed: int) -> None:
    """Otherwise it keeps nodes that the job does not want, and a further cycle is needed for those that it wants."""
    (subject,) = (one for one in subjects(steps=10**6, seed=seed) if one.name == shape)
    assert await differences(subject) == 0
