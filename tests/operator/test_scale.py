"""Rollouts come and go while the gang trains."""

from rljob_api import names
from rljob_api.schema.crd import crd
from simulator.world import NAMESPACE, World


def rollouts(world: World) -> list[str]:
    return sorted(p["metadata"]["name"] for p in world.cluster.pods(NAMESPACE) if "rollout" in p["metadata"]["name"])


async def test_rollouts_are_scaled_without_a_restart_of_the_trainers() -> None:
    world = World(steps=30)
    world.apply(rollout={"replicas": 2, "sampling": {"maxTokens": 8}})
    await world.until(state="Running", step=2)
    for replicas in (4, 1):
        world.edit_spec(rollout={"replicas": replicas, "sampling": {"maxTokens": 8}})
        for _ in range(4):
            await world.turn()
        assert rollouts(world) == [names.pod("demo", "rollout", i) for i in range(replicas)]
        assert world.status.rollout.text == f"{replicas}/{replicas}"
        control = world.control
        assert control is not None and len(control.rollouts) == replicas
    await world.until(state="Succeeded", turns=60)
    attempt = world.status.attempt
    assert attempt is not None and (attempt.number, world.status.restarts.total) == (1, 0)


async def test_kueue_admits_a_number_of_pods_so_it_changes_with_the_next_attempt() -> None:
    world = World(steps=30)
    kueue = {"backend": "kueue", "queue": "team"}
    world.apply(rollout={"replicas": 1}, scheduling=kueue)
    await world.until(state="Running", step=2)
    world.edit_spec(rollout={"replicas": 3}, scheduling=kueue)
    for _ in range(4):
        await world.turn()
    assert rollouts(world) == ["demo-rollout-0"]
    assert "takes effect with the next attempt" in world.status.message
    world.request("nonce", "restart")
    await world.until(attempt=2, step=4)
    assert len(rollouts(world)) == 3


async def test_the_scale_subresource_finds_its_numbers_and_its_pods() -> None:
    world = World()
    world.apply()
    await world.until(state="Running")
    paths = crd()["spec"]["versions"][0]["subresources"]["scale"]
    status = world.job["status"]["rollout"]
    assert paths["statusReplicasPath"] == ".status.rollout.ready" and status["ready"] == 1
    assert paths["labelSelectorPath"] == ".status.rollout.selector"
    wanted = dict(pair.split("=") for pair in status["selector"].split(","))
    pod = world.cluster.objects[("Pod", NAMESPACE, "demo-rollout-0")]
    assert wanted.items() <= pod["metadata"]["labels"].items()
