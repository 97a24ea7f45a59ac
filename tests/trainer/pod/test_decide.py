"""What a launcher does about a control, and how it concludes an attempt."""

import pytest

from api.specs import make_spec
from rljob_api.protocol import Command, Control, Failure, Member, Resume
from rljob_trainer.pod.attempt import conclude
from rljob_trainer.pod.launcher import Action, decide

CAUSE = Failure(kind="application", message="the loss is a banana")
SYMPTOM = Failure(kind="collective", message="connection closed by peer")


def control(attempt: int, command: Command, boot: str = "mine") -> Control:
    member = Member(pod="job-trainer-0", pod_uid="uid", boot_id=boot, node_rank=0, address="10.0.0.1")
    return Control(
        name="job",
        namespace="default",
        job_uid="uid",
        attempt=attempt,
        command=command,
        members=[member],
        resume=Resume(policy="auto"),
        spec=make_spec(),
    )


@pytest.mark.parametrize(
    ("command", "attempt", "newest", "action"),
    [
        ("run", 1, 0, "start"),
        ("run", 3, 1, "start"),
        ("drain", 1, 0, "start"),
        ("stop", 1, 0, "decline"),
        ("run", 1, 1, "wait"),
        ("stop", 1, 1, "wait"),
        ("run", 1, 2, "wait"),
    ],
)
def test_an_idle_launcher_starts_only_newer_attempts(
    command: Command, attempt: int, newest: int, action: Action
) -> None:
    assert decide(control(attempt, command), "mine", newest, running=False) == action


@pytest.mark.parametrize(
    ("command", "attempt", "action"),
    [("run", 2, "follow"), ("drain", 2, "follow"), ("stop", 2, "stop"), ("run", 3, "stop"), ("run", 1, "stop")],
)
def test_a_running_launcher_follows_its_own_attempt_and_stops_for_any_other(
    command: Command, attempt: int, action: Action
) -> None:
    assert decide(control(attempt, command), "mine", 2, running=True) == action


def test_a_boot_that_is_not_listed_waits_and_stops_what_it_runs() -> None:
    assert decide(control(1, "stop", "another"), "mine", 0, running=False) == "wait"
    assert decide(control(0, "run", "another"), "mine", 0, running=False) == "wait"
    assert decide(control(1, "run", "another"), "mine", 1, running=True) == "stop"


def test_a_boot_without_which_an_attempt_runs_stands_by() -> None:
    assert decide(control(1, "run", "another"), "mine", 0, running=False) == "stand by"
    assert decide(control(4, "run", "another"), "mine", 3, running=False) == "stand by"


def test_an_attempt_succeeds_only_with_an_outcome() -> None:
    assert conclude("succeeded", False, [], 9) == ("succeeded", None)
    result, failure = conclude(None, False, [], 9)
    assert failure
    assert (result, failure.message, failure.time) == ("failed", "the ranks ended without an outcome", 9)


def test_the_cause_is_reported_before_the_symptom() -> None:
    assert conclude(None, False, [SYMPTOM, CAUSE], 9) == ("failed", CAUSE)
    assert conclude(None, False, [SYMPTOM], 9) == ("failed", SYMPTOM)


def test_an_attempt_that_was_stopped_has_only_failed_when_it_has_a_cause_of_its_own() -> None:
    assert conclude(None, True, [], 9) == ("stopped", None)
    assert conclude(None, True, [SYMPTOM], 9) == ("stopped", None)
    assert conclude(None, True, [CAUSE], 9) == ("failed", CAUSE)
