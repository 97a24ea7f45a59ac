"""Models on gangs of their own: opened, stopped, suspended, placed and counted with the trainer's gang."""

from random import Random
from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_operator.kube.api import ApiError
from rljob_operator.model.children import refusal
from rljob_operator.render import scheduler_objects
from rljob_operator.render.template import pod_template
from simulator.crowd import Crowd
from simulator.feed import HOSTILE
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, make_job
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

FOUR: dict[str, Any] = {
    "critic": {"processesPerNode": 2, "parallelism": {"tensor": 2}},
    "reference": {"nodes": 2, "processesPerNode": 1},
    "algorithm": {"advantage": "gae", "kl": {"coefficient": 0.01}},
    "rewards": [{"rule": "number"}, {"model": {"path": "/data/reward", "processesPerNode": 1}}],
}
MEMBERS = [
    *(("trainer", "demo-trainer-0", 0), ("trainer", "demo-trainer-1", 1), ("critic", "demo-critic-0", 0)),
    *(("reference", "demo-reference-0", 0), ("reference", "demo-reference-1", 1), ("reward1", "demo-reward1-0", 0)),
]
GANGS = {"critic", "reference", "reward1"}


def pods(world: World, *roles: str) -> dict[str, str]:
    """Uids by name."""
    found = ((p["metadata"], p["metadata"]["labels"][names.LABEL_ROLE]) for p in world.cluster.pods(NAMESPACE))
    return {meta["name"]: meta["uid"] for meta, role in found if role in roles}


async def running(step: int = 3, **changes: Any) -> World:
    world = World(steps=4000)
    world.apply(**FOUR | changes)
    await world.until(state="Running", step=step)
    return world


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_job_of_four_gangs_lives_as_one_of_one(backend: str) -> None:
    scheduling = {"scheduling": {"backend": backend}}
    assert end(await live(World(steps=12), **FOUR, **scheduling)) == end(await live(World(steps=12), **scheduling))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_an_operator_killed_after_a_write_changes_nothing(backend: str) -> None:
    await kill_after_writes(every=17, scheduling={"backend": backend}, **FOUR)


async def test_an_attempt_has_members_of_all_gangs_and_says_where_each_meets() -> None:
    world = await running()
    control, attempt = world.control, world.status.attempt
    assert control and attempt
    assert [(m.role, m.pod, m.node_rank) for m in attempt.members] == MEMBERS
    assert control.members == attempt.members
    first = {m.role: m.address for m in attempt.members if m.node_rank == 0}
    assert {role: gang.address for role, gang in control.gangs.items()} == first
    assert {gang.master_port for gang in control.gangs.values()} == {names.master_port(1)}
    assert control.service_port == names.service_port(1)
    assert {role: counted.text for role, counted in world.status.gangs.items()} == dict.fromkeys(GANGS, "1/1") | {
        "reference": "2/2"
    }
    assert (world.status.trainer.text, world.status.pools) == ("2/2", {})


async def test_no_attempt_opens_before_the_last_pod_of_the_last_gang_is_there() -> None:
    world = World(steps=400)
    world.cluster.full.add("node-1")
    world.apply(**FOUR)
    for _ in range(3):
        await world.turn()
    world.cluster.full.clear()
    for _ in range(10):
        if "demo-reward1-0" in pods(world, "reward1"):
            world.kill_pod("demo-reward1-0")
        await world.turn()
        assert world.status.attempt is None
    assert world.status.message.startswith("waiting for trainer, critic, reference and reward1 pods: demo-reward1-0 ")
    await world.until(state="Running")


@pytest.mark.parametrize(("role", "ordinal"), [("reference", 1), ("critic", 0)])
async def test_a_pod_that_is_lost_in_any_gang_ends_the_attempt_of_all(role: str, ordinal: int) -> None:
    world = await running()
    others = pods(world, "trainer", *GANGS - {role})
    world.kill_pod(f"demo-{role}-{ordinal}")
    await world.until(state="Running", attempt=2)
    assert world.status.last_failure and world.status.restarts.counted == 0
    assert (world.status.last_failure.pod, world.status.last_failure.reason) == (
        f"demo-{role}-{ordinal}",
        reasons.POD_DELETED,
    )
    assert pods(world, "trainer", *GANGS - {role}) == others


async def test_the_cause_is_the_rank_that_failed_and_not_the_trainer_that_lost_it() -> None:
    world = await running()
    world.launcher(0).fail("collective", "RoleLost", world.now + 0.1)
    world.launcher(1, "reference").fail("application", "ValueError", world.now + 0.5)
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and (last.pod, last.reason) == ("demo-reference-1", reasons.APPLICATION_FAILED)
    assert world.status.restarts.counted == 1


async def test_a_container_that_restarts_in_a_gang_is_not_taken_for_its_former_life() -> None:
    world = await running()
    world.restart_container(0, "critic")
    await world.until(state="Running", attempt=2)
    last, attempt = world.status.last_failure, world.status.attempt
    assert last and attempt and last.reason == reasons.CONTAINER_RESTARTED
    assert [m.boot_id.endswith("+") for m in attempt.members] == [pod == "demo-critic-0" for _, pod, _ in MEMBERS]


async def test_the_trainer_ends_the_job_and_the_other_gangs_are_told_to_stop() -> None:
    world = World(steps=6)
    world.apply(**FOUR)
    await world.until(state="Succeeded")
    assert world.status.progress.step == 6 and world.status.outcome == "Succeeded"
    for _ in range(3):
        await world.turn()
    assert world.cluster.pods(NAMESPACE) == []


async def test_a_suspended_job_has_no_gangs_and_a_resumed_one_has_them_again() -> None:
    world = await running()
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert pods(world, "trainer", *GANGS) == {}
    assert {counted.text for counted in world.status.gangs.values()} == {"-"}
    saved = world.status.checkpoint.latest
    world.request("n2", "resume", from_step=saved.step if saved else None)
    await world.until(state="Running", step=(saved.step if saved else 0) + 1)
    assert pods(world, *GANGS).keys() == {pod for role, pod, _ in MEMBERS if role != "trainer"}


async def test_a_gang_that_the_spec_changes_is_made_anew_with_the_next_attempt() -> None:
    world = await running()
    before = pods(world, "reference")
    world.edit_spec(reference={"nodes": 1, "processesPerNode": 2})
    await world.until(step=world.status.progress.step + 3)
    assert pods(world, "reference") == before
    assert "takes effect with the next attempt" in world.status.message
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    assert pods(world, "reference").keys() == {"demo-reference-0"}
    world.edit_spec(reference={})
    world.request("n2", "restart")
    await world.until(state="Running", attempt=3)
    assert pods(world, "reference") == {} and world.status.gangs.keys() == GANGS - {"reference"}


async def test_an_evaluation_has_no_pods_of_gangs_that_only_training_asks() -> None:
    world = await running(0, evaluation={"only": True}, data={"validation": ["/data/heldout.parquet"]})
    assert pods(world, *GANGS) == {} and not world.status.gangs
    assert pods(world, "trainer") and world.control and world.control.gangs.keys() == {"trainer"}


def test_the_pods_of_a_gang_run_launchers_with_their_own_devices_and_the_job_s_token() -> None:
    gang = {"processesPerNode": 4, "parallelism": {"tensor": 4}, "shmSize": "8Gi", "template": {"image": "own:1"}}
    spec = make_job(task="dpo", trainer={"device": "gpu"}, reference=gang).spec
    pod = pod_template(META, spec, "reference")["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "rljob_trainer", "launch"]
    assert (container["name"], container["image"]) == ("trainer", "own:1")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert "readinessProbe" not in container
    assert names.ENV_ROLLOUT_TOKEN in {e["name"] for e in container["env"]}
    assert pod["volumes"][2]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


async def test_a_job_is_placed_with_all_of_its_gangs_or_not_at_all() -> None:
    crowd = Crowd({"a": 6})
    crowd.apply("demo", trainers=2, **FOUR)
    await crowd.turns(4)
    assert crowd.on_nodes("demo") == {}
    assert "needs capacity for 1 reward1 pod" in crowd.status("demo").message
    crowd.nodes["a"] = 7
    crowd.cluster.edit("Node", None, "a")["status"]["allocatable"]["pods"] = "7"
    await crowd.turns(6)
    assert set(crowd.on_nodes("demo")) == {pod for _, pod, _ in MEMBERS} | {"demo-rollout-0"}
    placement = crowd.status("demo").placement
    assert placement and placement.requests.keys() == {"trainer", "rollout"} | GANGS
    assert {x.pod: x.rank for x in placement.assignments if "reference" in x.pod} == {
        "demo-reference-0": 0,
        "demo-reference-1": 1,
    }
    assert placement.report.gangs == {role: ["a"] for role in GANGS}


@pytest.mark.parametrize("seed", range(3))
async def test_jobs_with_gangs_never_share_a_place(seed: int) -> None:
    crowd = Crowd({"a": 7, "b": 7}, faults=HOSTILE, random=Random(seed))
    for name in ("one", "two"):
        crowd.apply(name, trainers=2, **FOUR)
    for _ in range(6):
        crowd.cluster.crash_after = len(crowd.cluster.writes) + crowd.random.randint(1, 20)
        await crowd.turns(8)
    assert [len(crowd.on_nodes(job)) for job in ("one", "two")] == [7, 7]


async def test_metrics_count_the_pods_of_each_gang() -> None:
    world = await running()
    found = {s.labels["role"]: s.value for s in samples_of(world) if s.name == "rljob_job_ready_gang_pods"}
    assert found == {"critic": 1, "reference": 2, "reward1": 1}


def test_other_schedulers_take_all_gangs_as_one_group() -> None:
    trainer = {"device": "gpu", "nodes": 2, "processesPerNode": 8}
    volcano = make_job(trainer=trainer, scheduling={"backend": "volcano", "queue": "team"}, **FOUR).spec
    (group,) = scheduler_objects(META, volcano)
    each = {"trainer": 2, "critic": 1, "reference": 2, "reward1": 1, "rollout": 1}
    assert (group["spec"]["minMember"], group["spec"]["minTaskMember"]) == (7, each)
    assert group["spec"]["minResources"] == {"nvidia.com/gpu": "22"}
    kueue = make_job(trainer=trainer, scheduling={"backend": "kueue", "queue": "team"}, **FOUR).spec
    for role in each:
        notes = pod_template(META, kueue, role)["metadata"]["annotations"]
        assert notes["kueue.x-k8s.io/pod-group-total-count"] == "7"
        assert pod_template(META, volcano, role)["metadata"]["annotations"]["volcano.sh/task-spec"] == role


def test_a_refused_child_names_the_field_of_its_gang() -> None:
    error = ApiError(422, "", (("spec.template.spec.containers[0].image", "is bad"),))
    for role, field in (
        ("critic", "spec.critic"),
        ("reward1", "spec.rewards[1].model"),
        ("judge", "spec.pools[judge]"),
    ):
        child = {"kind": "StatefulSet", "metadata": {"name": f"demo-{role}", "labels": {names.LABEL_ROLE: role}}}
        assert f"{field}.template.image: is bad" in refusal("write", child, error).message
