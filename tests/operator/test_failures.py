"""Which failure is the root cause, and what it costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import reasons
from rljob_api.protocol import Failure, Report
from rljob_api.status import Restarts
from rljob_operator.policies.causes import Cause, recorded_cause
from rljob_operator.policies.pod_problem import pod_problem
from rljob_operator.times import backoff, seconds, stamp
from simulator.makers import NOW, Job, checkpoint, make_job
from simulator.world import NAMESPACE, World


def test_a_failure_stops_the_rest_of_the_gang_first() -> None:
    decision = make_job().with_attempt().running().failing(1).decide()
    attempt = decision.status.attempt
    assert attempt and (attempt.command, attempt.reason, attempt.failed_pod) == (
        "stop",
        reasons.APPLICATION_FAILED,
        "demo-trainer-1",
    )
    assert attempt.ended_at == ""
    assert decision.status.restarts == Restarts()
    assert decision.status.message == "stopping attempt 1: demo-trainer-1 (rank 1): ValueError: it broke"


def test_the_cause_is_not_a_rank_that_only_lost_its_peer() -> None:
    status = make_job().with_attempt().failing(0, kind="collective", time=NOW - 2).failing(1, time=NOW - 1).next()
    assert status.last_failure and (status.last_failure.pod, status.last_failure.reason) == (
        "demo-trainer-1",
        reasons.APPLICATION_FAILED,
    )


def test_the_cause_is_the_earliest_exception() -> None:
    status = make_job().with_attempt().failing(0, time=NOW - 1).failing(1, exception="KeyError", time=NOW - 2).next()
    assert status.last_failure and status.last_failure.failure and status.last_failure.failure.exception == "KeyError"


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_clock_that_is_an_hour_off_makes_no_cause_and_hides_none(ahead: float) -> None:
    """Of a rank that broke because of the first, or of the first one itself."""
    job = make_job(nodes=3).with_attempt().failing(1, exception="KeyError", time=NOW)
    job = job.with_status(attempt=job.next().attempt)
    late = job.failing(0, time=NOW + 1 + ahead).failing(2, time=NOW + 2)
    assert cause_of(late).pod == "demo-trainer-1"
    wrong = make_job(nodes=3).with_attempt().failing(0, time=NOW + ahead).failing(1, time=NOW).failing(2, time=NOW + 1)
    assert cause_of(wrong).pod == "demo-trainer-1", "the first of those that agree"


def test_of_two_clocks_that_disagree_none_is_believed_and_the_cause_that_is_known_stays() -> None:
    for ahead in (-3600.0, 3600.0):
        job = make_job().with_attempt().failing(1, time=NOW)
        job = job.with_status(attempt=job.next().attempt)
        assert cause_of(job.failing(0, time=NOW + ahead)).pod == "demo-trainer-1"


@given(data=st.data(), nodes=st.integers(3, 7))
@settings(max_examples=150)
def test_whatever_clocks_say_the_cause_is_the_first_failure_whose_clock_agrees_with_most(
    data: st.DataObject, nodes: int
) -> None:
    """Reports come in any order, in any number of passes."""
    wrong = data.draw(st.sets(st.integers(0, nodes - 1), max_size=(nodes - 1) // 2))
    after = [ms / 1000 for ms in data.draw(st.lists(st.integers(0, 5000), min_size=nodes, max_size=nodes, unique=True))]
    off = st.floats(100.0, 1e6).flatmap(lambda s: st.sampled_from([s, -s]))
    clocks = {i: data.draw(off) if i in wrong else data.draw(st.floats(-0.0004, 0.0004)) for i in range(nodes)}
    times = {i: NOW + after[i] + clocks[i] for i in range(nodes)}
    job = make_job(nodes=nodes).with_attempt().running()
    *early, last = data.draw(st.permutations(range(nodes)))
    for ordinal in early:
        job = job.failing(ordinal, time=times[ordinal])
        if data.draw(st.booleans()):
            job = job.with_status(attempt=job.next().attempt)
    job = job.failing(last, time=times[last])
    assert cause_of(job).pod == f"demo-trainer-{min(times.keys() - wrong, key=times.__getitem__)}"


def cause_of(job: Job) -> Cause:
    attempt = job.next().attempt
    found = recorded_cause(attempt) if attempt else None
    assert found
    return found


def test_an_exception_reported_late_replaces_the_broken_collective() -> None:
    job = make_job().with_attempt().running().failing(0, kind="collective")
    job = job.with_status(attempt=job.next().attempt)
    assert job.status.attempt and job.status.attempt.reason == reasons.COLLECTIVE_FAILED
    status = job.failing(1, exception="OutOfMemoryError").next()
    assert status.last_failure and status.last_failure.reason == reasons.APPLICATION_FAILED


def test_a_lost_pod_explains_what_its_peers_report() -> None:
    status = make_job().with_attempt().failing(0, kind="collective").without_pod(1).next()
    assert status.last_failure and (status.last_failure.reason, status.last_failure.pod) == (
        reasons.POD_DELETED,
        "demo-trainer-1",
    )
    assert status.restarts == Restarts(total=1, counted=0, uncounted=1)


@pytest.mark.parametrize(
    ("change", "reason", "counted"),
    [
        ({"phase": "Failed", "running": False, "disrupted": "preempted by x"}, reasons.POD_DISRUPTED, 0),
        ({"phase": "Failed", "running": False, "failed": "Evicted: it used too much"}, reasons.POD_FAILED, 1),
        (
            {"phase": "Failed", "running": False, "failed": "Terminated", "disrupted": "its node shuts down"},
            reasons.POD_DISRUPTED,
            0,
        ),
        ({"deleting": True, "running": False}, reasons.POD_DELETED, 0),
        ({"deleting": True, "running": False, "phase": "Failed"}, reasons.POD_DELETED, 0),
        ({"lost_since": NOW - 120}, reasons.NODE_LOST, 0),
        ({"running": False, "exited": "Error (exit code 137)"}, reasons.CONTAINER_RESTARTED, 1),
        ({"running": False, "exited": "OOMKilled (exit code 137)", "out_of_memory": True}, reasons.OUT_OF_MEMORY, 1),
    ],
)
def test_only_what_nobody_did_on_purpose_counts(change: dict[str, object], reason: str, counted: int) -> None:
    job = make_job().with_attempt().failing(0, kind="collective").changing_pod(1, **change)
    status = job.next()
    assert status.last_failure and status.last_failure.reason == reason
    assert status.restarts.counted == counted
    assert status.restarts.total == 1


def test_a_killed_process_counts() -> None:
    status = (
        make_job()
        .with_attempt()
        .failing(0, kind="collective")
        .failing(1, kind="killed", exception="Signal 9 (SIGKILL)")
        .next()
    )
    assert status.last_failure and status.last_failure.reason == reasons.PROCESS_KILLED
    assert status.restarts == Restarts(total=1, counted=1, not_before=stamp(NOW + 5))


def test_the_back_off_doubles_to_a_cap() -> None:
    assert [backoff(5, n) for n in (1, 2, 3, 8, 20)] == [5, 10, 20, 600, 600]


def test_a_configuration_error_fails_the_job_with_its_message() -> None:
    status = make_job().with_attempt().failing(0, kind="configuration").failing(1, kind="collective").next()
    assert (status.outcome, status.outcome_reason) == ("Failed", reasons.CONFIGURATION_ERROR)
    assert status.message == "demo-trainer-0 (rank 0): it broke"


def test_a_stable_and_saved_run_is_forgiven() -> None:
    job = make_job().with_status(restarts=Restarts(total=2, counted=2)).with_attempt(2)
    assert job.running(step=3).next().restarts.counted == 2, "nothing saved yet"
    assert job.running(step=2, checkpoints=[checkpoint(2, attempt=2)]).next().restarts.counted == 2, "too short"
    assert job.running(step=3, checkpoints=[checkpoint(2, attempt=2)]).next().restarts == Restarts(total=2, counted=0)


def test_a_heartbeat_that_stands_still_is_a_failure() -> None:
    job = make_job(lifecycle={"stallTimeoutSeconds": 60}).with_attempt().running(step=4)
    assert job.having(heartbeat_age=59.0).decide().requeue_after == 1
    status = job.having(heartbeat_age=60.0).next()
    assert status.attempt and (status.attempt.command, status.attempt.reason) == ("stop", reasons.NO_PROGRESS)
    assert status.message == "stopping attempt 1: no progress for 60 s while training at step 4"


def test_a_stall_while_a_role_loads_names_the_role() -> None:
    job = make_job(lifecycle={"stallTimeoutSeconds": 60}).with_attempt()
    status = job.running(step=4, phase="loading", loading=["critic"]).having(heartbeat_age=60.0).next()
    assert status.message == "stopping attempt 1: no progress for 60 s while loading critic at step 4"


def test_a_stall_while_generating_is_blamed_on_the_rollouts() -> None:
    job = make_job(lifecycle={"stallTimeoutSeconds": 60}).with_attempt().with_rollout(ready=False)
    status = job.running(step=4, phase="waiting").having(heartbeat_age=60.0).next()
    assert status.message.endswith("the trainer is waiting for its rollouts, of which 0 answer")


@pytest.mark.parametrize(
    ("exception", "message", "said"),
    [
        ("AssertionError", "", "AssertionError"),
        ("KeyError", "'model.layers.0'", "KeyError: 'model.layers.0'"),
        ("exit code 1", "the server ended", "exit code 1: the server ended"),
    ],
)
def test_why_a_server_does_not_come_up_is_said_while_it_is_awaited_and_when_that_has_lasted_too_long(
    exception: str, message: str, said: str
) -> None:
    failure = Failure(kind="application", exception=exception, message=message, time=NOW)
    report = Report(pod="demo-rollout-0", pod_uid="rollout-0", boot_id="b", failure=failure)
    job = make_job(lifecycle={"stallTimeoutSeconds": 60}).with_attempt().with_rollout(ready=False)
    job = job.running(step=4, phase="waiting")
    waiting = job.having(reports=job.reports | {"demo-rollout-0": report})
    assert pod_problem(waiting.snapshot(), waiting.pods[-1]) == said
    assert waiting.having(heartbeat_age=60.0).next().message.endswith(f", of which 0 answer; demo-rollout-0: {said}")


def test_a_rollout_that_is_misconfigured_fails_the_job() -> None:
    failure = Failure(
        kind="configuration", exception="ConfigurationError", message="spec.rollout.vllmArgs: no such argument"
    )
    report = Report(pod="demo-rollout-0", pod_uid="rollout-0", boot_id="b", failure=failure)
    job = make_job().with_attempt().with_rollout(ready=False).having(reports={"demo-rollout-0": report})
    status = job.next()
    assert status.attempt and status.attempt.reason == reasons.CONFIGURATION_ERROR
    assert "spec.rollout.vllmArgs: no such argument" in status.message


async def test_a_container_that_ran_out_of_memory_is_called_that_also_when_its_successor_runs_already() -> None:
    world = World(steps=400)
    world.apply(lifecycle={"backoffSeconds": 1})
    await world.until(state="Running", step=3)
    pod = world.cluster.edit("Pod", NAMESPACE, "demo-trainer-1")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Gi"}}
    (container,) = pod["status"]["containerStatuses"]
    container["lastState"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    world.restart_container(1)
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and (last.reason, last.pod, world.status.restarts.counted) == (
        reasons.OUT_OF_MEMORY,
        "demo-trainer-1",
        1,
    )
    assert last.failure and last.failure.message == (
        "the container on node node-1 needed more memory than its limit of 64Gi: OOMKilled (exit code 137)"
    )
    assert str(Cause(last.reason, last.pod, last.failure)).startswith("demo-trainer-1: OutOfMemory: the container on ")


async def test_a_launcher_that_ended_is_quoted_in_message_and_lines() -> None:
    world = World(steps=400)
    world.apply(lifecycle={"backoffSeconds": 1})
    await world.until(state="Running", step=3)
    (container,) = world.cluster.edit("Pod", NAMESPACE, "demo-trainer-1")["status"]["containerStatuses"]
    said = "Traceback (most recent call last):\n  File 'launcher.py'\nBlockingIOError: no more processes\n"
    container["lastState"] = {"terminated": {"reason": "Error", "exitCode": 1, "message": said}}
    world.restart_container(1)
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and last.failure and last.failure.lines == said.splitlines()
    assert last.failure.message == (
        "the container of pod demo-trainer-1 ended: Error (exit code 1): BlockingIOError: no more processes"
    )


async def test_a_process_that_ran_out_of_memory_is_called_that_when_its_launcher_says_so() -> None:
    """Its container lives on, so the next attempt does not wait for another boot."""
    world = World(steps=400)
    world.apply(lifecycle={"backoffSeconds": 1})
    await world.until(state="Running", step=3)
    world.launcher(1).fail("killed", "OutOfMemory", world.now)
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and (last.reason, last.pod, world.status.restarts.counted) == (
        reasons.OUT_OF_MEMORY,
        "demo-trainer-1",
        1,
    )
    assert (
        last.failure
        and str(Cause(last.reason, last.pod, last.failure)) == "demo-trainer-1 (rank 0): OutOfMemory: it broke"
    )


async def test_a_full_volume_is_waited_for_longer_each_time_and_ends_no_job() -> None:
    world = World(steps=400)
    world.apply(lifecycle={"maxRestarts": 0, "backoffSeconds": 4})
    waits = []
    for attempt in (1, 2, 3):
        await world.until(state="Running", attempt=attempt)
        world.launcher(1).fail("full", "OSError", world.now)
        await world.until(state="Restarting")
        while world.status.attempt and not world.status.attempt.ended_at:
            await world.turn()
        waits.append(seconds(world.status.restarts.not_before) - world.now)
    assert waits == [4, 8, 16]
    assert world.status.last_failure and world.status.last_failure.reason == reasons.VOLUME_FULL
    conditions = {c.type: c for c in world.status.conditions}
    assert (conditions["Stalled"].status, conditions["Stalled"].reason) == ("True", reasons.VOLUME_FULL)
    assert conditions["Reconciling"].status == "False", "never both"
    why = "attempt 3 failed (demo-trainer-1 (rank 0): OSError: it broke); make room on the volume; the next starts at "
    assert world.status.message == conditions["Stalled"].message == why + world.status.restarts.not_before
    await world.until(state="Running", attempt=4)
    assert next(c for c in world.status.conditions if c.type == "Stalled").status == "False"
    await world.until(step=world.status.progress.step + 5)
    assert world.status.restarts.uncounted == 0, "there was room, and it has saved"
