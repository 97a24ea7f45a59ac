"""What the job says of rollout servers that failed and were started again in their pods."""

from dataclasses import replace

from rljob_api import reasons
from rljob_api.protocol import Failure, Report, RolloutState
from rljob_operator.policies.describe import is_display, is_observational
from simulator.makers import NOW, Job, make_job


def failed(job: Job, time: float) -> Job:
    """The rollout reports that its server was killed."""
    failure = Failure(kind="killed", exception="ServerLost", message="its engine ended", time=time)
    report = Report(pod="demo-rollout-0", pod_uid="rollout-0", boot_id="boot", failure=failure)
    return replace(job, reports=job.reports | {"demo-rollout-0": report})


def running() -> Job:
    return make_job().with_attempt().running(step=4).with_rollout(ready=False)


def test_a_failed_server_is_one_warning_with_its_cause() -> None:
    job = failed(running(), NOW - 5)
    decision = job.decide()
    (event,) = [e for e in decision.events if e.reason == reasons.ROLLOUT_FAILED]
    assert (event.type, event.message) == ("Warning", "demo-rollout-0: ServerLost: its engine ended")
    assert decision.status.attempt == job.status.attempt, "no attempt ends by it"
    assert decision.status.restarts.total == 0
    again = replace(job, status=decision.status).decide()
    assert [e for e in again.events if e.reason == reasons.ROLLOUT_FAILED] == []
    later = failed(replace(job, status=decision.status), NOW - 1).decide()
    assert [e.reason for e in later.events] == [reasons.ROLLOUT_FAILED]


def test_it_is_written_at_once_so_that_it_is_said_once() -> None:
    """What is only displayed may be put off, and its events would be posted again."""
    before = running().next()
    after = failed(replace(running(), status=before), NOW - 5).next()
    assert is_observational(before, after) and not is_display(before, after)


def test_what_a_running_attempt_waits_for_is_its_message() -> None:
    awaiting = "syncing: waiting for demo-rollout-0 to receive weights"
    job = make_job().with_attempt().running(step=4, awaiting=awaiting)
    assert (job.next().state, job.next().message) == ("Running", awaiting)


def test_a_server_that_no_update_reaches_is_named_with_the_reason() -> None:
    out = RolloutState(pod="demo-rollout-1", quarantine="it did not take the policy of step 4: TimeoutError")
    job = make_job().with_attempt().running(step=4, rollouts=[RolloutState(pod="demo-rollout-0", policy_step=4), out])
    said = job.next().message
    assert said == f"demo-rollout-1 is left out for a while: demo-rollout-1: {out.quarantine}"


def test_a_job_without_failures_says_nothing() -> None:
    decision = running().decide()
    assert decision.status.last_rollout_failure is None
    assert [e for e in decision.events if e.reason == reasons.ROLLOUT_FAILED] == []
