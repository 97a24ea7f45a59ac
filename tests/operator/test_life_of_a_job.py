"""Whole lives of a job against a cluster in memory, with the operator killed between any two of its writes."""

import pytest

from rljob_api import reasons
from simulator.cluster import Crash
from simulator.life import end, kill_after_writes, live
from simulator.world import NAMESPACE, World


async def test_a_job_lives_through_a_lost_pod_a_failure_and_a_suspension() -> None:
    world = await live(World(steps=12))
    assert world.seen[0] == "Pending"
    assert world.seen[-1] == "Succeeded"
    assert end(world) == ("Succeeded", 4, 2, (2, reasons.APPLICATION_FAILED, "demo-trainer-1"), 12, 12)
    assert world.cluster.pods(NAMESPACE) == []


async def test_an_operator_killed_after_any_write_changes_nothing() -> None:
    await kill_after_writes(every=1)


async def test_an_operator_killed_after_every_third_write_changes_nothing() -> None:
    world = World(steps=12)
    world.cluster._written = _crashing(world)  # type: ignore[method-assign]
    assert end(await live(world)) == end(await live(World(steps=12)))
    assert world.crashes > 10


def _crashing(world: World):  # type: ignore[no-untyped-def]
    written = type(world.cluster)._written

    def every_third(verb: str, obj: dict) -> None:  # type: ignore[type-arg]
        written(world.cluster, verb, obj)
        if len(world.cluster.writes) % 3 == 0:
            raise Crash(verb)

    return every_third


async def test_a_finished_job_is_not_run_again() -> None:
    world = World(steps=4)
    world.apply()
    await world.until(state="Succeeded")
    attempt = world.status.attempt
    world.restart_operator()
    world.edit_spec(train={"steps": 8, "promptsPerStep": 4, "samplesPerPrompt": 4})
    for _ in range(20):
        await world.turn()
    assert (world.status.attempt, world.status.outcome) == (attempt, "Succeeded")
    assert world.cluster.pods(NAMESPACE) == []


async def test_a_finished_job_goes_on_from_a_checkpoint_when_asked_to() -> None:
    world = World(steps=6)
    world.apply()
    await world.until(state="Succeeded")
    world.request("n1", "resume", from_step=2)
    await world.until(state="Succeeded", attempt=2)
    assert world.status.progress.started_from == 2
    assert world.status.resume_step is None
    assert [c.step for c in world.status.checkpoint.kept] == [2, 4, 6]


async def test_an_ended_job_does_not_go_on_with_the_pods_that_it_gave_back() -> None:
    world = World(steps=6)
    world.apply()
    await world.until(state="Running", step=5)
    world.asleep = True
    former = {pod["metadata"]["uid"] for pod in world.cluster.pods(NAMESPACE)}
    await world.until(state="Succeeded")
    world.request("n1", "resume", from_step=2)
    for _ in range(5):
        await world.turn()
    assert (world.status.state, world.status.request) == ("Succeeded", "")
    world.asleep = False
    await world.until(state="Running", attempt=2)
    assert former.isdisjoint(pod["metadata"]["uid"] for pod in world.cluster.pods(NAMESPACE))
    await world.until(state="Succeeded", attempt=2)
    assert world.status.restarts.total == 0


async def test_a_running_job_goes_back_to_a_checkpoint_when_asked_to() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=7)
    world.request("n1", "resume", from_step=4)
    await world.until(state="Running", step=6, attempt=2)
    assert world.status.progress.started_from == 4
    assert world.status.restarts.total == 0
    world.kill_pod("demo-trainer-0")
    await world.until(state="Succeeded", attempt=3)
    assert world.status.progress.started_from >= 6, "the request is fulfilled once"


async def test_step_0_starts_over_from_the_initial_weights() -> None:
    world = World(steps=6)
    world.apply()
    await world.until(state="Succeeded")
    world.request("n1", "resume", from_step=0)
    await world.until(state="Succeeded", attempt=2)
    assert world.status.progress.started_from == 0
    assert {c.attempt for c in world.status.checkpoint.kept} == {2}, "what was saved before is given up"
    assert reasons.REQUEST_REFUSED not in world.events()


async def test_a_request_for_a_checkpoint_that_is_not_kept_is_refused() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=7)
    world.request("n1", "resume", from_step=5)
    await world.turn()
    assert reasons.REQUEST_REFUSED in world.events()
    assert world.status.request == "n1"
    await world.until(state="Succeeded")
    assert world.status.attempt and world.status.attempt.number == 1


async def test_a_deleted_pod_drains_the_gang_and_is_no_failure() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=3)
    world.delete_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2)
    assert world.status.last_failure is None
    assert (world.status.restarts.total, world.status.restarts.counted) == (1, 0)
    assert world.status.progress.started_from in (3, 4, 5), "the drain saved the step"


async def test_a_restarted_container_is_a_counted_failure() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=3)
    world.restart_container(1)
    await world.until(attempt=2)
    assert world.status.last_failure and world.status.last_failure.reason == reasons.CONTAINER_RESTARTED
    assert world.status.restarts.counted == 1


async def test_a_lost_rollout_is_no_new_attempt_and_leaves_the_list_of_endpoints() -> None:
    world = World(steps=12)
    world.apply(rollout={"replicas": 2, "sampling": {"maxTokens": 8}})
    await world.until(state="Running", step=3)
    before = world.control
    assert before and [r.pod for r in before.rollouts] == ["demo-rollout-0", "demo-rollout-1"]
    world.kill_pod("demo-rollout-1")
    await world.until(state="Succeeded")
    assert world.status.attempt and world.status.attempt.number == 1


async def test_failures_in_a_row_use_up_the_restarts() -> None:
    world = World(steps=12)
    world.apply(lifecycle={"maxRestarts": 1, "backoffSeconds": 2})
    for attempt in (1, 2):
        await world.until(attempt=attempt, state="Starting")
        await world.turn()
        world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.REACHED_MAX_RESTARTS
    assert (
        world.status.message
        == "given up after 2 failures in a row; attempt 2: demo-trainer-0 (rank 0): ValueError: it broke"
    )
    assert world.status.restarts.total == 1


async def test_a_configuration_error_fails_the_job_at_once() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Starting")
    await world.turn()
    world.launcher(1).fail("configuration", "ConfigurationError", world.now)
    await world.until(state="Failed")
    assert world.status.message == "demo-trainer-1 (rank 0): it broke"
    assert world.status.attempt and world.status.attempt.number == 1


async def test_two_jobs_do_not_touch_each_other() -> None:
    world = World(steps=6)
    world.apply()
    foreign = {"kind": "ConfigMap", "metadata": {"name": "other-control", "namespace": NAMESPACE}, "data": {"a": "b"}}
    stored = world.cluster.put(foreign)
    version = stored["metadata"]["resourceVersion"]
    await world.until(state="Succeeded")
    assert stored["metadata"]["resourceVersion"] == version


async def test_a_foreign_object_with_a_childs_name_is_left_alone_and_named() -> None:
    world = World(steps=6)
    foreign = world.cluster.put(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "demo-control", "namespace": NAMESPACE},
            "data": {"control.json": "{}"},
        }
    )
    world.apply()
    for _ in range(5):
        world.feed.deliver()
        await world.reconcile("demo")
    assert (
        world.status.message
        == "ConfigMap demo-control exists and has not this job's labels; delete it or rename the job"
    )
    assert foreign["data"] == {"control.json": "{}"}
    world.cluster.remove(foreign)
    await world.until(state="Succeeded")


async def test_a_changed_spec_waits_for_the_next_attempt_and_then_replaces_the_pods() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=3)
    uids = {p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)}
    world.edit_spec(image="trainer:next")
    await world.until(step=5)
    assert {p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)} == uids
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=2)
    assert {p["spec"]["containers"][0]["image"] for p in world.cluster.pods(NAMESPACE)} == {"trainer:next"}


@pytest.mark.parametrize(("nodes", "end"), [(3, "Running"), (1, "Running"), (0, "Failed")])
async def test_an_attempt_that_nobody_heard_of_begins_with_no_other_spec(nodes: int, end: str) -> None:
    """The operator died after it had written the attempt, and somebody edited the job before the next one came."""
    world = World(steps=400)
    world.apply()
    while world.status.attempt is None:
        world.cluster.crash_after = len(world.cluster.writes) + 1
        await world.turn()
    world.cluster.crash_after = None
    assert world.control and world.control.attempt == 0
    world.edit_spec(trainer={"device": "cpu", "nodes": nodes})
    while world.status.state != end:
        await world.turn()
        control = world.control
        assert control and (control.command == "stop" or len(control.members) == control.spec.trainer.nodes)
    assert world.status.attempt and world.status.attempt.number == (2 if end == "Running" else 1)
    assert world.status.restarts.total == 0


async def test_an_invalid_spec_makes_no_children_and_names_every_violation() -> None:
    world = World()
    world.apply(
        trainer={"device": "cpu", "nodes": 3, "parallelism": {"tensor": 2}}, train={"steps": 5, "miniBatches": 3}
    )
    await world.turn()
    await world.turn()
    assert world.status.state == "Failed"
    assert len(world.status.message.splitlines()) == 2
    assert {kind for kind, _, _ in world.cluster.objects} == {"RLJob", "Node"}
    world.edit_spec(
        trainer={"device": "cpu", "nodes": 2}, train={"steps": 4, "promptsPerStep": 4, "samplesPerPrompt": 4}
    )
    await world.until(state="Succeeded")


async def test_an_attempt_whose_word_is_lost_ends_if_its_spec_is_one_for_fewer_trainers_now() -> None:
    world = World(steps=400)
    world.apply()
    await world.until(state="Running", step=3)
    world.edit_spec(trainer={"device": "cpu", "nodes": 1})
    world.cluster.remove(world.cluster.objects["ConfigMap", NAMESPACE, "demo-control"])
    await world.until(state="Running", attempt=2)
    assert world.status.attempt and len(world.status.attempt.members) == 1


@pytest.mark.parametrize("suspend", [True, False])
async def test_a_job_gives_its_pods_back_though_its_spec_was_broken_meanwhile(suspend: bool) -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=3)
    world.edit_spec(trainer={"device": "cpu", "nodes": 0}, suspend=suspend)
    await world.until(state="Failed" if suspend else "Succeeded")
    for _ in range(3):
        await world.turn()
    assert world.status.suspended == suspend
    assert not world.cluster.pods(NAMESPACE)


async def test_gitops_does_not_undo_a_resume_until_it_changes_spec_suspend() -> None:
    world = World(steps=12)
    world.apply(suspend=True)
    await world.until(state="Suspended")
    world.request("n1", "resume")
    await world.until(state="Running", step=3)
    world.edit_spec(suspend=True)
    await world.until(step=5)
    assert world.status.state == "Running"
    world.edit_spec(suspend=False)
    await world.turn()
    world.edit_spec(suspend=True)
    await world.until(state="Suspended")
