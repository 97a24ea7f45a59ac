"""When an attempt opens, drains, stops and closes."""

from dataclasses import replace

import pytest

from rljob_api import reasons
from rljob_api.protocol import Member, Progress
from rljob_api.status import Attempt, Restarts
from rljob_operator.policies.change import give_command
from rljob_operator.times import seconds, stamp
from simulator.makers import META, NOW, checkpoint, make_job

DRAINED = {"state": "stopped", "result": "drained"}
STOPPED = {"state": "stopped", "result": "stopped"}


def test_an_attempt_opens_when_every_pod_has_reported() -> None:
    decision = make_job().with_pods().reported().decide()
    assert decision.status.attempt == Attempt(
        number=1,
        members=[
            Member(
                pod="demo-trainer-0", pod_uid="pod-0", boot_id="boot-0", node_rank=0, address="10.0.0.0", node="node-1"
            ),
            Member(
                pod="demo-trainer-1", pod_uid="pod-1", boot_id="boot-1", node_rank=1, address="10.0.0.1", node="node-1"
            ),
        ],
        generation=1,
        started_at=stamp(NOW),
    )
    assert [e.reason for e in decision.events] == [reasons.ATTEMPT_OPENED]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ip": ""}, "does not run yet"),
        ({"running": False}, "does not run yet"),
        ({"gates": ("kueue.x-k8s.io/admission",), "running": False}, "is held back by kueue.x-k8s.io/admission"),
        ({"deleting": True}, "is being deleted"),
        ({"lost_since": NOW - 1}, "is on a node that does not answer"),
        ({"template_hash": "old"}, "has an outdated template"),
        ({"uid": "another"}, "has not reported yet"),
    ],
)
def test_no_attempt_opens_while_a_pod_is_not_there(change: dict[str, object], problem: str) -> None:
    status = make_job().with_pods().reported().changing_pod(1, **change).next()
    assert status.attempt is None
    assert status.message == f"waiting for trainer pods: demo-trainer-1 {problem}"


def test_no_attempt_opens_while_a_pod_still_runs_the_last_one() -> None:
    job = make_job().with_attempt(1, ended_at=stamp(NOW - 1)).reporting(1, state="stopped").next()
    assert job.attempt and job.attempt.number == 1
    assert job.message == "waiting for trainer pods: demo-trainer-0 still runs attempt 1"


def test_no_attempt_opens_before_the_back_off_has_passed() -> None:
    job = (
        make_job().with_pods().reported().with_status(restarts=Restarts(total=1, counted=1, not_before=stamp(NOW + 20)))
    )
    decision = job.decide()
    assert decision.status.attempt is None
    assert decision.requeue_after == 20
    assert job.next(NOW + 20).attempt is not None


def test_a_suspend_drains_and_after_the_limit_stops() -> None:
    job = make_job(suspend=True).with_attempt().running(step=4).having(progress_interval=1000.0)
    drained = job.decide()
    assert drained.status.attempt and drained.status.attempt.command == "drain"
    assert drained.status.state == "Suspending"
    assert drained.requeue_after == 600
    late = job.with_status(attempt=drained.status.attempt).next(NOW + 600)
    assert late.attempt and (late.attempt.command, late.attempt.reason) == ("stop", reasons.SUSPENDED)


def test_a_drained_gang_is_suspended_and_says_where() -> None:
    job = (
        make_job(suspend=True)
        .with_attempt(command="drain", reason=reasons.SUSPENDED, commanded_at=stamp(NOW - 5))
        .reported(**DRAINED)
    )
    status = job.running(step=7, checkpoints=[checkpoint(7)]).next()
    assert status.suspended
    assert status.state == "Suspended"
    assert status.message == "suspended at the checkpoint of step 7; resume it with `kubectl rljob resume demo`"
    assert status.progress.text == "7/10"
    assert status.restarts == Restarts()
    assert status.last_failure is None


def test_a_resume_waits_for_pods_that_a_suspend_gave_back() -> None:
    """Their StatefulSet had to have none: an attempt that opened on them would lose them."""
    job = make_job().with_status(suspended=True).with_pods().reported(state="idle")
    early = job.next()
    assert (early.suspended, early.attempt, early.state) == (True, None, "Suspended")
    assert early.message == "resumes without a checkpoint when its former pods are gone"
    assert not job.changing_pod(0, deleting=True).changing_pod(1, deleting=True).next().suspended


def test_a_suspend_without_an_attempt_is_immediate() -> None:
    status = make_job(suspend=True).with_pods().reported().next()
    assert (status.suspended, status.attempt) == (True, None)


def test_a_gang_stopped_for_a_suspend_has_not_failed() -> None:
    ordered = {"command": "stop", "reason": reasons.SUSPENDED, "commanded_at": stamp(NOW - 5)}
    job = make_job(suspend=True).with_attempt(**ordered).reported(**STOPPED).failing(1, kind="collective")
    status = job.next()
    assert status.suspended
    assert status.last_failure is None


def test_a_pod_that_is_being_deleted_drains_the_gang() -> None:
    status = make_job().with_attempt().running().changing_pod(1, deleting=True).next()
    assert status.attempt and (status.attempt.command, status.attempt.reason) == ("drain", reasons.POD_DELETING)
    assert status.state == "Restarting"


def test_a_drained_pod_that_is_gone_has_still_drained() -> None:
    ordered = {"command": "drain", "reason": reasons.POD_DELETING, "commanded_at": stamp(NOW - 5)}
    status = make_job().with_attempt(**ordered).reported(**DRAINED).without_pod(1).next()
    assert status.attempt and status.attempt.ended_at
    assert status.last_failure is None
    assert status.restarts == Restarts(total=1, uncounted=1)


def test_a_node_that_stays_away_is_lost_and_not_before() -> None:
    job = make_job().with_attempt().running().changing_pod(1, lost_since=NOW - 100, ready=False)
    waiting = job.decide()
    assert waiting.status.attempt and waiting.status.attempt.command == "run"
    assert waiting.requeue_after == 20
    lost = job.next(NOW + 20)
    assert lost.attempt and (lost.attempt.command, lost.attempt.reason) == ("stop", reasons.NODE_LOST)


def test_a_launcher_that_does_not_answer_is_deleted_with_its_pod() -> None:
    ordered = {"command": "stop", "reason": reasons.RESUME_REQUESTED, "commanded_at": stamp(NOW - 60)}
    decision = make_job().with_attempt(**ordered).reporting(0, **STOPPED).decide()
    assert [p.name for p in decision.delete] == ["demo-trainer-1"]


def test_pods_of_an_outdated_template_are_deleted_between_attempts_only() -> None:
    assert make_job().with_attempt().running().changing_pod(0, template_hash="old").decide().delete == ()
    closed = make_job().with_attempt(ended_at=stamp(NOW - 1)).reported(**STOPPED).changing_pod(0, template_hash="old")
    assert [p.name for p in closed.decide().delete] == ["demo-trainer-0"]


def test_all_members_finishing_is_success() -> None:
    decision = (
        make_job()
        .with_attempt()
        .reported(state="stopped", result="succeeded")
        .running(step=10, export="/data/hf")
        .decide()
    )
    assert decision.status.outcome == "Succeeded"
    assert decision.status.message == "all 10 steps are done; the Hugging Face model is at /data/hf"
    assert [e.reason for e in decision.events] == [reasons.SUCCEEDED]


def test_a_request_to_go_back_that_meets_the_end_of_the_last_step_is_not_lost() -> None:
    """It is consumed, so nobody would ever go back if the job ended now."""
    job = make_job().with_attempt().running(step=10, checkpoints=[checkpoint(4)])
    back = {"attempt": job.status.attempt and give_command(job.status.attempt, "stop", reasons.RESUME_REQUESTED, NOW)}
    job = job.with_status(**back, resume_step=4).reported(state="stopped", result="succeeded")
    status = job.next()
    assert status.outcome == ""
    assert status.attempt and (status.attempt.number, status.attempt.resume_step) == (2, 4)


def test_one_member_finishing_is_not_yet_success() -> None:
    status = make_job().with_attempt().running(step=10).reporting(1, state="stopped", result="succeeded").next()
    assert (status.outcome, status.attempt and status.attempt.ended_at) == ("", "")
    assert status.state == "Running"


def test_a_resume_step_is_asked_for_until_an_attempt_has_started_from_it() -> None:
    job = make_job().with_status(resume_step=4).with_attempt(resume_step=4)
    assert job.next().resume_step == 4
    assert job.reporting(0, progress=Progress(started_from=4)).next().resume_step is None


def test_a_failed_attempt_hands_its_resume_step_on() -> None:
    job = make_job(lifecycle={"backoffSeconds": 0}).with_status(resume_step=4).with_attempt(resume_step=4)
    status = job.failing(0).reporting(1, **STOPPED).next()
    assert status.attempt and (status.attempt.number, status.attempt.resume_step) == (2, 4)


def test_steps_are_lost_once_though_the_first_word_of_an_attempt_may_say_nothing_urgent() -> None:
    """It can look like the last word of its predecessor: both started from the model, and both are in a step."""
    job = make_job().with_attempt(1).running(step=50).with_rollout()
    job = replace(job, status=job.next()).with_attempt(2).running(step=0)
    again = replace(job, status=job.next(NOW + 1))
    assert (again.status.lost_steps, again.next(NOW + 2).lost_steps) == (50, 50)


def test_an_open_attempt_survives_an_edit_that_breaks_the_spec() -> None:
    job = make_job().with_attempt().running()
    status = job.having(spec=None, violations=("spec.x = 1: wrong; mend it",)).next()
    assert status.attempt and status.attempt.command == "run"
    assert status.state == "Running"
    assert status.message == "runs on with its former spec; the new one is refused: spec.x = 1: wrong; mend it"


def test_a_time_in_status_is_never_early() -> None:
    assert seconds(stamp(NOW + 0.2)) == NOW + 1
    assert META.generation == 1
