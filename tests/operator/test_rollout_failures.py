"""What the job says of rollout servers that failed and were started again in their pods."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_api import reasons
from rljob_api.protocol import Failure, Report, RolloutState
from rljob_operator.policies.describe import is_display, is_observational
from simulator.makers import NOW, Job, make_job


def failed(job: Job, time: float, server: int = 0, boot: str = "boot", message: str = "its engine ended") -> Job:
    """A rollout reports that its server was killed."""
    failure = Failure(kind="killed", exception="ServerLost", message=message, time=time)
    name = f"demo-rollout-{server}"
    report = Report(pod=name, pod_uid=f"rollout-{server}", boot_id=boot, failure=failure)
    return replace(job, reports=job.reports | {name: report})


def with_servers(count: int) -> Job:
    job = make_job(rollout={"replicas": count, "sampling": {"maxTokens": 8}}).with_attempt().running(step=4)
    pod = job.with_rollout().pods[-1]
    return replace(
        job,
        pods=(
            *job.pods,
            *(replace(pod, name=f"demo-rollout-{i}", uid=f"rollout-{i}", ordinal=i) for i in range(count)),
        ),
    )


def decided(job: Job, now: float = NOW) -> tuple[Job, list[str]]:
    """The job with its next status, and the messages of its events about servers."""
    decision = job.decide(now)
    messages = [event.message for event in decision.events if event.reason == reasons.ROLLOUT_FAILED]
    return replace(job, status=decision.status), messages


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


def test_a_pod_whose_clock_is_ahead_mutes_no_other() -> None:
    job, first = decided(failed(with_servers(2), NOW + 3600, server=0))
    job, second = decided(failed(job, NOW + 60, server=1))
    assert first == ["demo-rollout-0: ServerLost: its engine ended"]
    assert second == ["demo-rollout-1: ServerLost: its engine ended"]
    assert job.status.last_rollout_failure and job.status.last_rollout_failure.pod == "demo-rollout-1"


def test_a_pod_whose_clock_was_set_back_is_heard_as_well() -> None:
    job, _ = decided(failed(with_servers(1), NOW))
    assert decided(failed(job, NOW - 3600))[1] == ["demo-rollout-0: ServerLost: its engine ended"]


def test_a_failure_of_unknown_time_is_recorded_once_for_each_boot_and_message() -> None:
    job, first = decided(failed(with_servers(1), 0.0))
    assert first and decided(job)[1] == []
    job, other = decided(failed(job, 0.0, message="out of memory"))
    assert other == ["demo-rollout-0: ServerLost: out of memory"]
    assert decided(failed(job, 0.0, message="out of memory", boot="next"))[1] == other


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    job, _ = decided(failed(failed(with_servers(2), NOW, 0), NOW, 1))
    assert job.status.server_failures.keys() == {"demo-rollout-0", "demo-rollout-1"}
    job, _ = decided(replace(job, pods=job.pods[:-1]))
    assert job.status.server_failures.keys() == {"demo-rollout-0"}


@given(
    skews=st.lists(st.sampled_from([-1e6, -60.0, 0.0, 60.0, 1e6]), min_size=3, max_size=3),
    failures=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=12),
)
def test_every_failure_is_told_exactly_once_whatever_the_clocks_say(
    skews: list[float], failures: list[tuple[int, bool, bool]]
) -> None:
    """`failures`: which server, whether its clock is unreadable, and whether the operator misses the moment until the next one."""
    job, expected, heard, pending = with_servers(3), [], list[str](), dict[int, str]()
    for i, (server, timeless, missed) in enumerate(failures):
        message = f"failure {i}"
        job = failed(job, 0.0 if timeless else NOW + i + skews[server], server, message=message)
        pending[server] = message
        if not missed:
            job, news = decided(job, NOW + i)
            heard += news
            expected += [f"demo-rollout-{n}: ServerLost: {text}" for n, text in sorted(pending.items())]
            pending.clear()
            assert decided(job, NOW + i)[1] == []
    assert heard == expected
