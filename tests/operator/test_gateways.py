"""The gateway of a service: it stays while trainers and rollouts restart, move, or are suspended; and a service that nobody asks sleeps."""

from typing import Any

import pytest

from kubectl_rljob.printers.status import service_line
from rljob_api import names
from rljob_api.backends import BACKENDS, BackendName
from rljob_api.protocol import ServiceReport
from rljob_operator.render.template import pod_template
from simulator.life import kill_after_writes
from simulator.makers import META, make_job
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

STEPS = 10**6
"""Of the simulated trainer, which would end a job that has a loop."""


def serving(world: World, **changes: Any) -> None:
    world.apply(**{"task": "service", "train": {}, "trainer": {"device": "cpu", "nodes": 2}} | changes)


def uids(world: World, role: str) -> list[str]:
    pods = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return [m["uid"] for m in pods if m["labels"][names.LABEL_ROLE] == role]


def say(world: World, **report: Any) -> None:
    """What the gateway has to say of its clients, and of the ranks that work now."""
    attempt = world.status.attempt.number if world.status.attempt else 0
    for gateway in world.gateways.values():
        gateway.service = ServiceReport(**({"attempt": attempt} | report))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_service_has_a_gateway_that_trainers_can_lose_their_pods_without(backend: BackendName) -> None:
    world = World(steps=STEPS)
    serving(world, scheduling={"backend": backend})
    await world.until(state="Running", step=2)
    (gateway,) = world.gateways.values()
    assert gateway.serves and world.status.gateway.text == "1/1" and world.status.pools == {}
    assert world.control and world.control.gateway == gateway.address
    before, trainers = uids(world, "gateway"), uids(world, "trainer")
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2)
    assert uids(world, "gateway") == before and uids(world, "trainer") != trainers


async def test_a_lost_gateway_is_replaced_alone_and_the_attempt_hears_of_the_next_one() -> None:
    world = World(steps=STEPS)
    serving(world)
    await world.until(state="Running", step=2)
    (before,) = world.gateways.values()
    world.kill_pod("demo-gateway-0")
    await world.until(step=world.status.progress.step + 4)
    (after,) = world.gateways.values()
    assert after.pod_uid != before.pod_uid and after.serves
    assert world.control and world.control.gateway == after.address != before.address
    assert world.status.attempt and world.status.attempt.number == 1


async def test_a_gateway_whose_node_is_lost_has_a_successor_and_serves_no_more() -> None:
    world = World(steps=STEPS)
    serving(world, lifecycle={"nodeLossSeconds": 5})
    await world.until(state="Running", step=2)
    (before,) = world.gateways.values()
    world.hang_pod("demo-gateway-0")
    for _ in range(60):
        await world.turn()
    serve = [one for one in world.gateways.values() if one.serves and not one.dark]
    assert [one.pod for one in serve] == ["demo-gateway-1"]
    assert world.control and world.control.gateway == serve[0].address != before.address


@pytest.mark.parametrize("backend", sorted(BACKENDS))
async def test_a_suspended_service_keeps_its_gateway_alone_and_one_that_has_failed_does_not(
    backend: BackendName,
) -> None:
    queue = {"queue": "team"} if backend in ("kueue", "volcano", "kai") else {}
    world = World(steps=STEPS)
    serving(world, scheduling={"backend": backend} | queue, lifecycle={"maxRestarts": 0})
    await world.until(state="Running", step=2)
    before = uids(world, "gateway")
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    for _ in range(3):
        await world.turn()
    assert (uids(world, "trainer"), uids(world, "rollout"), uids(world, "gateway")) == ([], [], before)
    assert world.status.gateway.text == "1/1" and world.status.rollout.text == "-"
    world.request("n2", "resume")
    await world.until(state="Running", attempt=2)
    assert uids(world, "gateway") == before
    world.launcher(0).fail("application", "RuntimeError", world.now)
    await world.until(state="Failed")
    for _ in range(3):
        await world.turn()
    assert uids(world, "gateway") == [] and world.status.gateway.text == "-"


async def test_a_service_that_nobody_asks_sleeps_and_wakes_with_the_next_request() -> None:
    world = World(steps=STEPS)
    serving(world, service={"idleSeconds": 60})
    await world.until(state="Running", step=2)
    before = uids(world, "gateway")
    say(world, clients=1, idle=True)
    await world.until(state="Suspended")
    assert world.status.asleep and "the next request wakes it" in world.status.message
    assert uids(world, "trainer") == uids(world, "rollout") == []
    for _ in range(90):
        await world.turn()
    assert world.status.state == "Suspended"
    world.kill_pod("demo-gateway-0")  # one that begins has heard nothing, and wakes nobody
    say(world)
    for _ in range(5):
        await world.turn()
    assert world.status.state == "Suspended" and uids(world, "gateway") != before
    say(world, clients=2, waiting=3)
    await world.until(state="Running", attempt=2)
    assert not world.status.asleep and {"Idle", "Woken", "Resumed"} <= set(world.events())


async def test_a_service_that_is_resumed_by_hand_sleeps_when_its_new_ranks_have_been_idle_for_as_long() -> None:
    world = await asleep()
    world.request("n1", "resume")
    await world.until(state="Running", attempt=2)
    for _ in range(90):  # the gateway has heard nothing of them yet: they load the model
        await world.turn()
    assert world.status.state == "Running"
    say(world, idle=True)
    await world.until(state="Suspended")


async def asleep() -> World:
    world = World(steps=STEPS)
    serving(world, service={"idleSeconds": 60})
    await world.until(state="Running", step=2)
    say(world, idle=True)
    await world.until(state="Suspended")
    assert world.status.asleep
    return world


async def test_a_spec_that_is_wrong_for_a_moment_wakes_nobody() -> None:
    world = await asleep()
    world.edit_spec(trainer={"device": "cpu", "nodes": -1})
    for _ in range(5):
        await world.turn()
    assert world.status.asleep and "Woken" not in world.events()
    world.edit_spec(trainer={"device": "cpu", "nodes": 2})
    for _ in range(5):
        await world.turn()
    assert world.status.state == "Suspended" and world.status.asleep and uids(world, "trainer") == []


async def test_a_service_that_is_never_to_sleep_any_more_wakes_for_that_reason() -> None:
    world = await asleep()
    world.edit_spec(service={})
    await world.until(state="Running", attempt=2)
    texts = [event["message"] for (kind, _, _), event in world.cluster.objects.items() if kind == "Event"]
    assert not any("a client asks" in text for text in texts)
    assert any("no longer says when it sleeps (idleSeconds)" in text for text in texts)


async def test_a_resume_from_a_step_wakes_a_service_too() -> None:
    world = await asleep()
    world.request("n1", "resume", from_step=0)
    await world.until(state="Running", attempt=2)
    assert not world.status.asleep


async def test_an_idle_service_does_not_sleep_unless_the_spec_says_when() -> None:
    world = World(steps=STEPS)
    serving(world)
    await world.until(state="Running", step=2)
    say(world, idle=True)
    for _ in range(90):
        await world.turn()
    assert world.status.state == "Running" and not world.status.asleep


async def test_failures_in_a_row_are_forgotten_once_clients_have_been_answered() -> None:
    world = World(steps=STEPS, save_every=10**9)
    serving(world, lifecycle={"backoffSeconds": 1})
    for attempt in range(1, 7):
        await world.until(state="Running", attempt=attempt)
        say(world, attempt=attempt, answered=3)
        for _ in range(20):
            await world.turn()
        assert world.status.restarts.counted == 0
        world.launcher(0).fail("application", "RuntimeError", world.now)
    await world.until(state="Running", attempt=7)


async def test_an_operator_killed_after_a_write_changes_nothing() -> None:
    await kill_after_writes(every=11, task="service", train={})


async def test_the_status_and_metrics_say_what_clients_have_and_wait_for() -> None:
    world = World(steps=STEPS)
    serving(world)
    await world.until(state="Running", step=2)
    say(world, clients=2, models=3, waiting=4, trained_tokens=5000, sampled_tokens=600, mismatches=7)
    for _ in range(40):
        await world.turn()
    service = world.status.service
    assert (service.clients, service.models, service.waiting) == (2, 3, 4)
    assert service.address == f"http://demo-gateway.{NAMESPACE}:8470"
    found = {s.name: s.value for s in samples_of(world) if s.name.startswith("rljob_job_service")}
    assert found["rljob_job_service_trained_tokens"] == 5000 and found["rljob_job_service_waiting"] == 4
    assert found["rljob_job_service_mismatches"] == 7
    assert service_line(service).endswith("600 sampled; 7 results differ that were repeated")


def test_only_the_gateway_mounts_the_keys_and_no_scheduler_of_gangs_knows_it() -> None:
    volumes = [
        {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}},
        {"name": "keys", "mountPath": "/keys", "source": {"secret": {"secretName": "clients"}}},
    ]
    scheduling = {"backend": "volcano", "queue": "team"}
    job = make_job(task="service", train={}, service={"keys": "/keys"}, volumes=volumes, scheduling=scheduling)
    pods = {role: pod_template(META, job.spec, role) for role in job.spec.pods}
    mounted = {role: [v["name"] for v in pod["spec"]["volumes"] if v["name"] == "keys"] for role, pod in pods.items()}
    assert mounted == {"trainer": [], "rollout": [], "gateway": ["keys"]}
    assert "volcano" in str(pods["rollout"])
    assert "volcano" not in str(pods["gateway"])
    container = pods["gateway"]["spec"]["containers"][0]
    assert (
        container["command"][-1] == "gateway"
        and container["readinessProbe"]["httpGet"]["port"] == names.GATEWAY_WORK_PORT
    )


def test_a_group_of_pods_is_counted_without_the_gateway_which_stays_when_the_group_goes() -> None:
    job = make_job(1, task="service", train={}, scheduling={"backend": "kueue", "queue": "team"})
    pods = {role: pod_template(META, job.spec, role)["metadata"] for role in job.spec.pods}
    assert pods["trainer"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    assert "kueue" not in str(pods["gateway"])


async def test_each_naming_of_another_pod_has_a_higher_number_which_the_status_has_first() -> None:
    world = World(steps=STEPS)
    serving(world)
    await world.until(state="Running", step=2)
    assert world.control and world.control.gateway_number == world.status.gateway_number == 1
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2)
    assert world.control.gateway_number == 1
    for number in (2, 3):
        world.kill_pod("demo-gateway-0")
        await world.until(step=world.status.progress.step + 4)
        (gateway,) = world.gateways.values()
        assert world.control.gateway == gateway.address and world.status.gateway_pod == gateway.pod_uid
        assert world.control.gateway_number == world.status.gateway_number == number
