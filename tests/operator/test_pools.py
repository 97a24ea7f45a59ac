"""Pools of a job: made, placed, replaced, suspended and counted with it."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import reasons
from rljob_api.backends import BACKENDS, BackendName
from rljob_api.protocol import Failure, Report
from rljob_operator.schedulers import SCHEDULERS
from simulator.counted import counted
from simulator.crowd import Crowd
from simulator.feed import HOSTILE
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, make_job
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

JUDGE = {"name": "judge", "model": "/data/judge", "replicas": 2}
REWARD = {"vllm": {"pool": "judge"}}
POOLED: dict[str, Any] = {"pools": [JUDGE], "rewards": [REWARD]}


def pods(world: World, role: str) -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith(f"demo-{role}-")}


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_job_with_a_pool_lives_as_one_without(backend: BackendName) -> None:
    pooled = await live(World(steps=12), scheduling={"backend": backend}, **POOLED)
    assert end(pooled) == end(await live(World(steps=12), scheduling={"backend": backend}))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_an_operator_killed_after_a_write_changes_nothing(backend: BackendName) -> None:
    await kill_after_writes(every=11, scheduling={"backend": backend}, **POOLED)


async def test_a_lost_server_is_replaced_alone_and_the_trainer_hears_of_it() -> None:
    world = World(steps=400)
    world.apply(**POOLED)
    await world.until(state="Running", step=3)
    control = world.control
    assert control and [e.pod for e in control.pools["judge"]] == ["demo-judge-0", "demo-judge-1"]
    assert world.status.pools["judge"].text == "2/2"
    before, trainers = pods(world, "judge"), pods(world, "trainer")
    world.kill_pod("demo-judge-1")
    await world.until(step=world.status.progress.step + 4)
    assert pods(world, "judge").keys() == before.keys() and pods(world, "judge") != before
    assert pods(world, "trainer") == trainers and world.status.attempt and world.status.attempt.number == 1
    assert world.control and {e.pod_uid for e in world.control.pools["judge"]} == set(pods(world, "judge").values())


async def test_metrics_count_the_servers_of_each_pool() -> None:
    world = World(steps=400)
    world.apply(**POOLED)
    await world.until(state="Running", step=2)
    found = [(s.labels["pool"], s.value) for s in samples_of(world) if s.name == "rljob_job_ready_pool_servers"]
    assert found == [("judge", 2.0)]


async def test_a_suspended_job_has_no_servers_and_a_resumed_one_has_them_again() -> None:
    world = World(steps=400)
    world.apply(**POOLED)
    await world.until(state="Running", step=3)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert pods(world, "judge") == {} and world.status.pools["judge"].text == "-"
    world.request("n2", "resume")
    await world.until(state="Running")
    assert len(pods(world, "judge")) == 2


async def test_a_pool_that_leaves_the_spec_gives_its_pods_back_with_the_next_attempt() -> None:
    world = World(steps=400)
    world.apply(**POOLED)
    await world.until(state="Running", step=3)
    world.edit_spec(pools=[JUDGE | {"name": "other", "replicas": 1}], rewards=[{"vllm": {"pool": "other"}}])
    await world.until(step=world.status.progress.step + 3)
    assert len(pods(world, "judge")) == 2 and pods(world, "other") == {}
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=2)
    assert pods(world, "judge") == {} and len(pods(world, "other")) == 1
    assert world.control and world.control.pools.keys() == {"other"} == world.status.pools.keys()


@pytest.mark.parametrize(
    ("role", "changed"),
    [
        ("judge", {"pools": [JUDGE | {"template": {"image": "new:1"}}]}),
        ("rollout", {"rollout": {"template": {"image": "new:1"}}}),
    ],
)
async def test_a_restart_brings_servers_their_new_template(role: str, changed: dict[str, Any]) -> None:
    """The trainers' template is the same, so that the next attempt could open at once and keep the servers as they are."""
    world = World(steps=4000)
    world.apply(**POOLED)
    await world.until(state="Running", step=3)
    before, trainers = pods(world, role), pods(world, "trainer")
    world.edit_spec(**changed)
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    made = [p for p in world.cluster.pods(NAMESPACE) if p["metadata"]["name"] in before]
    assert [p["spec"]["containers"][0]["image"] for p in made] == ["new:1"] * len(before)
    assert pods(world, "trainer") == trainers


async def test_a_gang_waits_until_its_pool_has_room_too() -> None:
    crowd = Crowd({"a": 4})
    crowd.apply("demo", trainers=2, **POOLED)
    await crowd.turns(4)
    assert crowd.on_nodes("demo") == {}
    assert "needs capacity for 2 judge pods" in crowd.status("demo").message
    crowd.nodes["a"] = 5
    crowd.cluster.edit("Node", None, "a")["status"]["allocatable"]["pods"] = "5"
    await crowd.turns(6)
    assert set(crowd.on_nodes("demo")) == {
        *(f"demo-trainer-{i}" for i in range(2)),
        "demo-rollout-0",
        "demo-judge-0",
        "demo-judge-1",
    }
    placement = crowd.status("demo").placement
    assert placement and placement.requests.keys() == {"trainer", "rollout", "judge"}


@pytest.mark.parametrize("seed", range(3))
async def test_jobs_with_pools_never_share_a_place(seed: int) -> None:
    from random import Random

    crowd = Crowd({"a": 5, "b": 5}, faults=HOSTILE, random=Random(seed))
    for name in ("one", "two"):
        crowd.apply(name, trainers=2, **POOLED)
    for _ in range(6):
        crowd.cluster.crash_after = len(crowd.cluster.writes) + crowd.random.randint(1, 20)
        await crowd.turns(8)
    assert [len(crowd.on_nodes(job)) for job in ("one", "two")] == [5, 5]


def test_a_misconfigured_pool_fails_the_job_while_none_of_its_servers_answers() -> None:
    job = make_job(**POOLED).with_attempt().running().with_rollout()
    judge = replace(job.pods[-1], name="demo-judge-0", uid="judge-0", role="judge", ready=False)
    failure = Failure(kind="configuration", message="vLLM refused its arguments: correct spec.pools[0].vllmArgs")
    report = Report(pod="demo-judge-0", pod_uid="judge-0", boot_id="b", failure=failure)
    broken = replace(job, pods=(*job.pods, judge), reports=job.reports | {"demo-judge-0": report})
    attempt = broken.next().attempt
    assert attempt and (attempt.reason, attempt.failed_pod) == (reasons.CONFIGURATION_ERROR, "demo-judge-0")
    other = replace(judge, name="demo-judge-1", uid="judge-1", ordinal=1, ready=True)
    assert (served := replace(broken, pods=(*broken.pods, other)).next().attempt) and served.command == "run"


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_every_scheduler_counts_a_pool_whole(backend: BackendName) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    rollout = {"replicas": 4, "minReplicas": 1, "sampling": {"maxTokens": 8}}
    spec = make_job(scheduling={"backend": backend} | queue, rollout=rollout, **POOLED).spec
    settings = SCHEDULERS[backend].pod_settings(META, spec, "judge")
    assert settings.annotations.get("kueue.x-k8s.io/pod-group-total-count", "8") == "8"
    groups = SCHEDULERS[backend].objects(META, spec)
    assert not groups or counted(backend, groups) == {"trainer": 2, "rollout": 1, "judge": 2}


async def test_a_server_that_refuses_the_token_opens_a_new_attempt_with_a_new_one() -> None:
    """Somebody made the Secret again, with another value, and this server alone was started since: only the trainer sees it, as a 401."""
    world = World(steps=10**6)
    world.apply(**POOLED)
    await world.until(state="Running", step=3)
    before, rank_0 = pods(world, "judge"), world.launcher(0)
    assert rank_0.progress
    rank_0.progress = rank_0.progress.model_copy(update={"unauthorized": ["demo-judge-1"]})
    await world.until(state="Running", attempt=2, turns=80)
    assert not set(before.values()) & set(pods(world, "judge").values())
    assert reasons.TOKEN_REPLACED in world.events() and world.status.restarts.counted == 0
