"""What the trainer warns of while it continues."""

from dataclasses import replace

from rljob_api import reasons
from rljob_operator.policies.describe import is_display
from simulator.makers import Job, make_job

TEXT = "since step 2, all responses to a prompt get the same reward"


def warned(job: Job) -> list[str]:
    return [event.message for event in job.decide().events if event.reason == reasons.TRAINER_WARNED]


def test_a_warning_is_one_event_and_stays_in_status_and_message_until_it_is_gone() -> None:
    plain = make_job().with_attempt().running(step=4)
    job = plain.running(step=5, warnings=[TEXT])
    assert warned(job) == [TEXT]
    after = job.next()
    assert after.progress.warnings == [TEXT] and after.message == TEXT
    assert not is_display(job.status, after), "it is written at once, so that its event is posted once"
    assert warned(replace(job, status=after)) == []
    assert warned(replace(job, status=after).running(step=6, warnings=[TEXT, "another"])) == ["another"]
    assert replace(plain, status=after).running(step=7).next().message == ""
