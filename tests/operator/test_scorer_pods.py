"""Pods that run a job's reward functions: made, replaced, scaled and counted with it, as those of its agent are (test_worker_pods.py)."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names
from rljob_api.backends import BackendName
from rljob_api.protocol import Failure, Report
from rljob_operator.policies.progress import failure_sentence
from rljob_operator.render import render
from rljob_operator.render.template import pod_template
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, make_job
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

BY_RULE = {"rule": "exactMatch", "dataSource": "else"}
OF_SCORER = names.gang("demo", "scorer1")


def scored(replicas: int = 2, **workers: Any) -> list[dict[str, Any]]:
    """spec.rewards, of which the second runs in pods."""
    return [BY_RULE, {"python": {"path": "/data/judge.py"}, "workers": {"replicas": replicas} | workers}]


def pods(world: World, role: str) -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith(f"demo-{role}-")}


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_job_whose_rewards_have_pods_lives_as_one_without(backend: BackendName) -> None:
    found = await live(World(steps=12), scheduling={"backend": backend}, rewards=scored())
    assert end(found) == end(await live(World(steps=12), scheduling={"backend": backend}))


async def test_an_operator_killed_after_a_write_changes_nothing() -> None:
    await kill_after_writes(every=11, rewards=scored())


async def test_a_lost_scorer_is_replaced_alone_and_the_attempt_goes_on() -> None:
    world = World(steps=400)
    world.apply(rewards=scored())
    await world.until(state="Running", step=3)
    assert {role: found.text for role, found in world.status.scorers.items()} == {"scorer1": "2/2"}
    assert world.status.pools == {} and world.status.workers.text == ""
    assert world.control and world.control.service_port == names.service_port(1)
    before, trainers = pods(world, "scorer1"), pods(world, "trainer")
    world.kill_pod("demo-scorer1-1")
    await world.until(step=world.status.progress.step + 4)
    assert pods(world, "scorer1").keys() == before.keys() and pods(world, "scorer1") != before
    assert pods(world, "trainer") == trainers and world.status.attempt and world.status.attempt.number == 1


async def test_scorers_are_scaled_without_a_restart_and_go_while_the_job_is_suspended() -> None:
    world = World(steps=400)
    world.apply(rewards=scored(1))
    await world.until(state="Running", step=2)
    for replicas in (4, 2):
        world.edit_spec(rewards=scored(replicas))
        for _ in range(4):
            await world.turn()
        assert sorted(pods(world, "scorer1")) == [names.pod("demo", "scorer1", i) for i in range(replicas)]
        assert world.status.scorers["scorer1"].text == f"{replicas}/{replicas}"
        assert "next attempt" not in world.status.message
    world.edit_spec(rewards=[BY_RULE, scored()[1] | {"weight": 2}])
    await world.turn()
    assert "next attempt" in world.status.message, "what is scored changes with an attempt"
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert pods(world, "scorer1") == {} and world.status.scorers["scorer1"].text == "-"


async def test_metrics_count_them() -> None:
    world = World(steps=400)
    world.apply(rewards=scored())
    await world.until(state="Running", step=2)
    found = [s for s in samples_of(world) if s.name == "rljob_job_ready_scorers"]
    assert [(s.labels["role"], s.value) for s in found] == [("scorer1", 2.0)]


def test_who_waits_for_rewards_says_how_many_pods_answer() -> None:
    job = make_job(rewards=scored()).with_pods().reported()
    opened = job.next().attempt
    assert opened and {m.role for m in opened.members} == {"trainer"}
    waiting = job.with_attempt().running(phase="waiting").with_rollout(ready=True)
    assert waiting.next().message == "waiting for rollouts, 1/1 answer, scorer1, 0/2 answer"
    stalled = replace(waiting, status=waiting.next()).having(heartbeat_age=1800.0).next().attempt
    assert stalled and stalled.failure
    assert stalled.failure.message.endswith("of which 1 answer, and scorer1, of which 0/2 do")


def test_no_scheduler_waits_for_them_and_they_are_made_with_the_gangs_first_node() -> None:
    job = make_job(scheduling={"backend": "builtin"}, rewards=scored()).having(fresh_token="t")
    pending = job.with_pods(node="", running=False, ready=False, ip="", phase="Pending")
    found = {}
    for name, one in (("there", job.with_pods()), ("pending", pending)):
        sets = {o["metadata"]["name"]: o for o in render(one.snapshot(), one.next()) if o["kind"] == "StatefulSet"}
        found[name] = sets[OF_SCORER]["spec"]["replicas"]
    assert found == {"there": 2, "pending": 0}


def test_their_pods_are_as_restricted_as_all_others_and_have_no_gpu() -> None:
    spec = make_job(trainer={"device": "gpu"}, rewards=scored(template={"image": "own:1"})).spec
    assert spec
    pod = pod_template(META, spec, "scorer1")["spec"]
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == ("worker", "own:1")
    assert container["command"] == ["python", "-m", "rljob_trainer", "worker", "scorer1"]
    assert "resources" not in container and names.ENV_ROLLOUT_TOKEN in [entry["name"] for entry in container["env"]]
    trainer = pod_template(META, spec, "trainer")["spec"]
    assert pod["securityContext"] == trainer["securityContext"] and "schedulingGates" not in pod
    assert container["securityContext"] == trainer["containers"][0]["securityContext"]


def test_a_failure_that_a_scorer_reports_is_named() -> None:
    job = make_job(rewards=scored()).with_attempt().running().with_rollout()
    pod = replace(job.pods[-1], name="demo-scorer1-0", uid="scorer-0", role="scorer1", ready=False)
    failure = Failure(kind="application", exception="exit code 3", message="it ended", time=5.0)
    report = Report(pod=pod.name, pod_uid=pod.uid, boot_id="b", failure=failure)
    decision = replace(job, pods=(*job.pods, pod), reports=job.reports | {pod.name: report}).decide()
    last = decision.status.last_rollout_failure
    assert last and failure_sentence(last) == "demo-scorer1-0: exit code 3: it ended"
    assert decision.status.attempt and decision.status.attempt.command == "run"
