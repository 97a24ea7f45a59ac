"""Time limits, and what is left of a job that has ended."""

from api.specs import raw_spec
from rljob_api import reasons
from rljob_operator.times import stamp
from simulator.makers import NOW, make_job
from simulator.world import NAMESPACE, World


async def test_a_job_whose_pods_do_not_start_in_time_fails_and_says_why() -> None:
    world = World()
    world.apply(lifecycle={"pendingDeadlineSeconds": 20})
    world.cluster.full.add("node-1")
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.PENDING_DEADLINE_EXCEEDED
    assert "demo-trainer-0 does not run yet" in world.status.message
    assert world.status.message.startswith("not all trainer pods started within pendingDeadlineSeconds (20 s)")
    await world.turn()
    assert world.cluster.pods(NAMESPACE) == []


def test_the_pending_deadline_counts_from_the_first_pass_or_a_resume_and_not_from_a_restart() -> None:
    job = make_job(lifecycle={"pendingDeadlineSeconds": 60})
    first = job.decide()
    assert first.status.pending_since == stamp(NOW)
    assert first.requeue_after is not None and first.requeue_after <= 60
    resumed = job.with_status(suspended=True).next()
    assert resumed.pending_since == stamp(NOW)
    between = job.with_attempt(ended_at=stamp(NOW)).without_pod(0).next(NOW + 1000)
    assert (between.pending_since, between.outcome) == ("", "")


async def test_an_attempt_that_used_up_the_active_time_is_drained_and_the_job_fails() -> None:
    world = World(steps=200)
    world.apply(lifecycle={"activeDeadlineSeconds": 15})
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.ACTIVE_DEADLINE_EXCEEDED
    assert world.status.checkpoint.latest and world.status.checkpoint.latest.step == world.status.progress.step
    assert world.status.message == "attempts ran for activeDeadlineSeconds (15 s) and are not done"


def test_the_active_time_of_former_attempts_counts() -> None:
    job = make_job(lifecycle={"activeDeadlineSeconds": 1000}).with_attempt().with_status(active_seconds=850.0)
    assert (job.next(NOW + 49).attempt or job).command == "run"  # type: ignore[union-attr]
    late = job.next(NOW + 50).attempt
    assert late and (late.command, late.reason) == ("drain", reasons.ACTIVE_DEADLINE_EXCEEDED)


async def test_who_goes_back_to_a_checkpoint_begins_the_active_time_anew() -> None:
    world = World(steps=200)
    world.apply(lifecycle={"activeDeadlineSeconds": 15})
    await world.until(state="Running", step=9)
    world.request("n1", "resume", from_step=8)
    await world.until(state="Running", attempt=2)
    assert world.status.active_seconds == 0.0
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.ACTIVE_DEADLINE_EXCEEDED


async def test_children_of_a_finished_job_go_after_their_time_and_the_job_is_not_run_again() -> None:
    world = World(steps=4)
    world.apply(lifecycle={"ttlSecondsAfterFinished": 10})
    await world.until(state="Succeeded")
    await world.turn()
    assert world.control, "still there"
    for _ in range(15):
        await world.turn()
    kinds = {kind for kind, _, _ in world.cluster.objects}
    assert kinds == {"RLJob", "Node", "Event", "Secret"}
    world.restart_operator()
    world.edit_spec(train=raw_spec(train={"steps": 8})["train"])
    for _ in range(5):
        await world.turn()
    assert {kind for kind, _, _ in world.cluster.objects} == kinds
    assert (world.status.outcome, world.status.attempt and world.status.attempt.number) == ("Succeeded", 1)


async def test_a_job_whose_children_are_gone_goes_on_from_a_checkpoint_when_asked_to() -> None:
    world = World(steps=6)
    world.apply(lifecycle={"ttlSecondsAfterFinished": 0})
    await world.until(state="Succeeded")
    await world.turn()
    assert world.control is None
    world.request("n1", "resume", from_step=2)
    await world.until(state="Running", attempt=2)
    assert not world.status.cleaned_up


async def test_a_changed_spec_is_said_to_wait_for_the_next_attempt() -> None:
    world = World(steps=40)
    world.apply()
    await world.until(state="Running", step=3)
    world.edit_spec(image="trainer:next")
    await world.turn()
    await world.turn()
    said = "spec generation 2 takes effect with the next attempt; `kubectl rljob restart demo` starts one"
    assert world.status.message == said
    assert world.events().count(reasons.SPEC_POSTPONED) == 1


async def test_the_pending_deadline_counts_from_a_resume_of_a_job_that_had_ended() -> None:
    world = World(steps=10)
    world.apply(lifecycle={"pendingDeadlineSeconds": 20})
    await world.until(state="Succeeded")
    world.cluster.full.add("node-1")
    world.request("n1", "resume", 6)
    await world.until(state="Failed", turns=60)
    assert world.status.outcome_reason == reasons.PENDING_DEADLINE_EXCEEDED
