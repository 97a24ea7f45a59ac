"""What people and tools read: state, message, conditions, progress."""

import math

import pytest
from pydantic import ValidationError

from rljob_api import reasons
from rljob_api.protocol import Point, Progress
from rljob_api.rules import Violation
from rljob_api.spec.run import CheckpointSpec
from rljob_api.status_parts import CheckpointStatus, ProgressStatus
from rljob_operator.times import stamp
from simulator.makers import NOW, Job, checkpoint, make_job

REFUSED = Violation("spec.trainer.nodes", "0", "must be at least 1", "raise it")


def test_a_job_is_running_only_when_every_member_says_so() -> None:
    job = make_job().with_attempt().running()
    assert job.next().state == "Running"
    assert job.reporting(1, attempt=0, state="idle").next().state == "Starting"
    assert job.running(phase="loading").next().state == "Starting"
    assert job.running(phase="waiting").next().state == "Starting"
    assert job.changing_pod(1, deleting=True).next().state == "Restarting"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unschedulable": "0/3 nodes are available"}, "cannot be scheduled: 0/3 nodes are available"),
        ({"waiting": "ImagePullBackOff: no such image"}, "ImagePullBackOff: no such image"),
        (
            {"waiting": "CrashLoopBackOff", "exited": "OOMKilled (exit code 137)"},
            "CrashLoopBackOff, last ended by OOMKilled (exit code 137)",
        ),
    ],
)
def test_a_pod_in_trouble_explains_itself_in_the_message(change: dict[str, str], message: str) -> None:
    status = make_job().with_pods().changing_pod(1, ready=False, running=False, **change).next()
    assert status.state == "Pending"
    assert status.message == f"waiting for trainer pods: demo-trainer-1: {message}"


@pytest.mark.parametrize("backend", ["none", "native", "volcano", "kai"])
def test_what_another_scheduler_says_of_the_gang_is_in_the_condition_placed(backend: str) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    job = make_job(scheduling={"backend": backend} | ({"queue": "q"} if backend in ("volcano", "kai") else {}))
    job = job.with_pods(ready=False, running=False, node="", unschedulable=said)
    (placed,) = [c for c in job.next().conditions if c.type == "Placed"]
    assert (placed.status, placed.reason) == ("False", "Unschedulable")
    assert placed.message == f"demo-trainer-0 and 1 more: {said}"


def test_a_pod_of_another_release_is_named() -> None:
    status = (
        make_job(nodes=1)
        .with_pods()
        .having(unreadable={"demo-trainer-0": "pod demo-trainer-0 speaks protocol 2"})
        .next()
    )
    assert status.message == "waiting for trainer pods: pod demo-trainer-0 speaks protocol 2"


def test_a_report_that_cannot_be_read_is_named_also_while_an_attempt_is_open() -> None:
    job = make_job(nodes=1).with_attempt().having(reports={}, unreadable={"demo-trainer-0": "the report is too long"})
    assert (job.next().state, job.next().message) == ("Starting", "the report is too long")


def test_a_report_holds_as_many_checkpoints_as_a_job_may_keep() -> None:
    most = CheckpointSpec.model_json_schema()["properties"]["keepLast"]["maximum"]
    Progress(phase="training", checkpoints=[checkpoint(step) for step in range(1, most + 1)])
    with pytest.raises(ValidationError):
        Progress(phase="training", checkpoints=[checkpoint(step) for step in range(1, most + 2)])


def test_a_job_that_goes_back_says_from_which_step_it_starts() -> None:
    kept = CheckpointStatus(latest=checkpoint(60), kept=[checkpoint(40), checkpoint(60)])
    first, back = make_job().with_attempt(), make_job().with_attempt(2, resume_step=40)
    assert first.running(phase="loading").next().message == "attempt 1 is starting"
    back = back.with_status(checkpoint=kept, resume_step=40).running(phase="loading", started_from=None)
    assert back.next().message == "attempt 2 is starting from step 40"


def test_a_job_that_fetches_says_what_and_how_much_of_it_is_there() -> None:
    job = make_job().with_attempt()
    status = job.running(phase="fetching", started_from=None, fetching="hf://org/m, 3.2 of 15.2 GB").next()
    assert (status.state, status.message) == ("Starting", "fetching hf://org/m, 3.2 of 15.2 GB")


def test_a_job_names_the_roles_whose_models_are_still_loading() -> None:
    job = make_job().with_attempt().running(phase="loading", loading=["critic", "reference"])
    status = job.next()
    assert (status.state, status.progress.phase) == ("Starting", "loading")
    assert status.message == "waiting for critic and reference to load"
    assert job.running(phase="loading", loading=["reference"]).next().message == "waiting for reference to load"
    assert job.running(phase="generating").next().state == "Running"


def test_waiting_for_rollouts_names_their_trouble() -> None:
    job = (
        make_job()
        .with_attempt()
        .with_rollout(ready=False, waiting="CrashLoopBackOff: back-off")
        .running(phase="waiting")
    )
    assert job.next().message == "waiting for rollouts, 0/1 answer: demo-rollout-0: CrashLoopBackOff: back-off"


def test_conditions_follow_the_state_and_keep_their_times() -> None:
    job = make_job().with_attempt().with_rollout().running()
    first = job.next()
    assert {c.type: c.status for c in first.conditions} == {
        "Admitted": "True",
        "Placed": "True",
        "NodesSound": "True",
        "TrainerReady": "True",
        "RolloutsReady": "True",
        "Reconciling": "False",
        "Checkpointed": "False",
        "Preempted": "False",
        "Suspended": "False",
        "Stalled": "False",
        "Succeeded": "Unknown",
        "Failed": "Unknown",
    }
    later = job.with_status(conditions=first.conditions).running(checkpoints=[checkpoint(1)]).next(NOW + 60)
    times = {c.type: c.last_transition_time for c in later.conditions}
    assert times.pop("Checkpointed") == stamp(NOW + 60)
    assert set(times.values()) == {stamp(NOW)}


def test_progress_alone_is_written_at_most_every_interval() -> None:
    job = make_job().with_attempt()
    written = job.running(step=1).next()
    job = job.with_status(progress=written.progress)
    throttled = job.running(step=2).decide(NOW + 10)
    assert throttled.status.progress == written.progress
    assert throttled.requeue_after == 20
    assert job.running(step=2).next(NOW + 30).progress.text == "2/10"


def test_a_checkpoint_is_written_at_once() -> None:
    job = make_job().with_attempt()
    job = job.with_status(progress=job.running(step=1).next().progress)
    status = job.running(step=2, checkpoints=[checkpoint(2)]).next(NOW + 1)
    assert status.progress.step == 2
    assert status.checkpoint.latest == checkpoint(2)


def test_numbers_that_json_cannot_say_are_left_out() -> None:
    points = [
        Point(step=1, reward=0.5, loss=math.nan, seconds=1.0),
        Point(step=1, reward=math.nan, loss=0.5, seconds=1.0),
        Point(step=2, reward=0.6, loss=0.1, seconds=1.0),
    ]
    metrics = {"reward/mean": 0.6049, "train/loss": math.inf}
    read = Progress.model_validate({"history": [p.model_dump() for p in points], "metrics": metrics})
    reported = {"history": read.history, "metrics": read.metrics, "backend": "torch, gloo"}
    status = make_job().with_attempt().running(step=2, **reported).next()
    assert status.progress == ProgressStatus(
        attempt=1,
        step=2,
        steps=10,
        text="2/10",
        phase="training",
        metric="reward 0.605",
        metrics={"reward/mean": 0.6049},
        history=points[2:],
        started_from=0,
        backend="torch, gloo",
        updated_at=stamp(NOW),
    )


def test_a_task_without_rewards_is_followed_by_its_loss() -> None:
    points = [Point(step=2, loss=1.5, seconds=1.0)]
    status = make_job().with_attempt().running(step=2, history=points, metrics={"train/loss": 1.5}).next()
    assert (status.progress.metric, status.progress.history) == ("loss 1.500", points)


def test_nothing_changes_when_nothing_happened() -> None:
    job = make_job().with_attempt().with_rollout().running(step=2)
    first = job.next()
    assert job.with_status(**{k: getattr(first, k) for k in type(first).model_fields}).next(NOW + 5) == first


def test_an_attempt_that_is_loading_does_not_forget_the_run() -> None:
    job = make_job().with_attempt()
    status = job.running(step=7, checkpoints=[checkpoint(6)], metrics={"reward/mean": 0.5}).next()
    job = job.with_status(progress=status.progress, checkpoint=status.checkpoint)
    loading = job.running(step=0, phase="loading", started_from=None).next()
    assert (loading.progress.text, loading.progress.metric, loading.progress.phase) == (
        "7/10",
        "reward 0.500",
        "loading",
    )
    assert loading.checkpoint == status.checkpoint


def test_an_attempt_that_started_over_has_no_checkpoint() -> None:
    job = make_job().with_attempt()
    job = job.with_status(checkpoint=job.running(step=7, checkpoints=[checkpoint(6)]).next().checkpoint)
    assert job.running(step=0, started_from=0).next().checkpoint.latest is None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (make_job().with_attempt().running(), ("Unknown", reasons.NOT_FINISHED)),
        (make_job().with_status(outcome="Succeeded", outcome_reason=reasons.SUCCEEDED), ("False", reasons.SUCCEEDED)),
        (
            make_job().with_status(
                outcome="Failed", outcome_reason=reasons.REACHED_MAX_RESTARTS, outcome_message="it broke"
            ),
            ("True", reasons.REACHED_MAX_RESTARTS),
        ),
        (make_job().having(spec=None, violations=(REFUSED,)), ("True", reasons.INVALID_SPEC)),
    ],
    ids=["running", "succeeded", "failed", "refused"],
)
def test_who_waits_for_a_failure_learns_of_it_and_of_its_reason(job: Job, expected: tuple[str, str]) -> None:
    status = job.next()
    (found,) = (c for c in status.conditions if c.type == "Failed")
    assert (found.status, found.reason) == expected
    assert bool(found.message) == (found.status == "True")


def test_ready_is_a_dash_once_the_job_has_ended_also_while_its_pods_are_still_ready() -> None:
    """`1/0` would be a job that has more than it wants."""
    ended = {"outcome": "Failed", "outcome_reason": reasons.CONFIGURATION_ERROR}
    last_pods = make_job(nodes=1).with_pods().with_rollout().with_status(**ended).next()
    assert (last_pods.trainer.text, last_pods.rollout.text) == ("-", "-")
    assert (last_pods.trainer.ready, last_pods.rollout.ready) == (1, 1), "the scale subresource counts them"
    released = make_job(nodes=1).with_status(**ended).next()
    assert (released.trainer.text, released.rollout.text) == ("-", "-")
    waiting = make_job(nodes=1).next()
    assert (waiting.trainer.text, waiting.rollout.text) == ("0/1", "0/1")


@pytest.mark.parametrize(
    ("said", "kept"), [(17.5, 17.5), (0, 0.0), (-1.0, None), (math.nan, None), (1e300, None), ("8", None)]
)
def test_the_pace_is_passed_on_where_it_is_a_duration(said: object, kept: float | None) -> None:
    read = Progress.model_validate({"pace": said})
    status = make_job().with_attempt().running(step=2, pace=read.pace).next()
    assert status.progress.pace == kept
