"""The token of the rollout servers and the pods' ServiceAccount, deleted by somebody: made again, and no gang stays with two values."""

import pytest

from rljob_api import names, reasons
from rljob_api.protocol import RolloutState
from simulator.life import kill_after_writes
from simulator.world import NAMESPACE, World


def secrets(world: World) -> set[str]:
    return {name for kind, _, name in world.cluster.objects if kind == "Secret"}


def delete_secrets(world: World) -> None:
    for name in secrets(world):
        world.cluster.remove(world.cluster.objects["Secret", NAMESPACE, name])


def tokens_in_use(world: World) -> set[str]:
    """What containers got as they started."""
    return {pod["status"]["token"] for pod in world.cluster.pods(NAMESPACE) if "token" in pod["status"]}


async def running() -> World:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=3)
    assert len(tokens_in_use(world)) == 1
    return world


async def test_nobody_notices_a_deleted_secret_until_a_pod_needs_it() -> None:
    world = await running()
    delete_secrets(world)
    for _ in range(10):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 1
    assert world.status.state == "Running"


async def test_a_pod_that_misses_the_secret_gets_a_new_one_and_so_does_everybody_else() -> None:
    world = await running()
    before = tokens_in_use(world)
    delete_secrets(world)
    world.kill_pod("demo-rollout-0")
    await world.until(state="Running", attempt=2, turns=80)
    assert len(tokens_in_use(world)) == 1 and not tokens_in_use(world) & before
    assert world.status.restarts.counted == 0, "it is nobody's failure"
    assert reasons.TOKEN_REPLACED in world.events()


async def test_a_secret_that_is_deleted_with_a_stateful_set_does_not_come_back_with_another_value() -> None:
    world = await running()
    delete_secrets(world)
    world.cluster.remove(world.cluster.objects["StatefulSet", NAMESPACE, "demo-trainer"])
    await world.until(state="Running", attempt=2, turns=80)
    for _ in range(20):
        await world.turn()
    await world.until(state="Running", turns=80)
    assert len(tokens_in_use(world)) == 1


async def test_a_secret_that_is_deleted_while_a_job_is_suspended_is_there_when_it_resumes() -> None:
    world = await running()
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    delete_secrets(world)
    world.request("n2", "resume")
    await world.until(state="Running", attempt=2, turns=40)
    assert len(tokens_in_use(world)) == 1


async def test_a_rollout_that_refuses_the_token_opens_a_new_attempt_with_a_new_one() -> None:
    """Somebody made the Secret again, with another value: only the trainer sees it, as a 401."""
    world = await running()
    before = tokens_in_use(world)
    rank_0 = world.launcher(0)
    assert rank_0.progress
    refused = [RolloutState(pod="demo-rollout-0", unauthorized=True)]
    rank_0.progress = rank_0.progress.model_copy(update={"rollouts": refused})
    await world.until(state="Running", attempt=2, turns=80)
    assert len(tokens_in_use(world)) == 1 and not tokens_in_use(world) & before


async def test_pods_whose_service_account_was_made_again_are_replaced() -> None:
    """Their tokens are bound to the account that is gone: no report and no command would ever arrive."""
    world = await running()
    old = {p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)}
    world.cluster.remove(world.cluster.objects["ServiceAccount", NAMESPACE, names.pods("demo")])
    await world.until(state="Running", attempt=2, turns=80)
    assert not old & {p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)}
    assert world.status.restarts.counted == 0
    assert reasons.ACCOUNT_REPLACED in world.events()
    for _ in range(20):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 2


@pytest.mark.slow
async def test_an_operator_killed_after_any_write_replaces_token_and_account_all_the_same() -> None:
    async def story(world: World) -> tuple[object, ...]:
        world.apply()
        await world.until(state="Running", step=3)
        delete_secrets(world)
        world.kill_pod("demo-rollout-0")
        await world.until(state="Running", attempt=2, turns=120)
        world.cluster.remove(world.cluster.objects["ServiceAccount", NAMESPACE, names.pods("demo")])
        await world.until(state="Running", attempt=3, turns=120)
        return len(tokens_in_use(world)), world.status.attempt and world.status.attempt.number

    assert await kill_after_writes(1, story, steps=10**6) == (1, 3)
