"""Real launchers, real torchrun agents, real gloo; ranks and driver without a model."""

import os
import signal
import time
from collections.abc import Callable

from trainer.launcher.gang import Gang, alive, kill, wait_for

from rljob_trainer.launcher.processes import children

Make = Callable[..., Gang]


def test_an_attempt_runs_on_all_nodes_and_each_launcher_reports_that_it_succeeded(gang: Make) -> None:
    job = gang(nodes=2)
    job.tell(1)
    job.pid(1, 0), job.pid(1, 1)
    wait_for("progress", lambda: (p := job.report("job-trainer-0").progress) and p.beat > 5)
    assert job.report("job-trainer-1").progress is None
    job.finish(1)
    for pod in job.pods:
        assert job.stopped(pod, 1).result == "succeeded"
    log = (job.root / "logs" / "attempt-1" / "job-trainer-1-0.log").read_text()
    assert "rank 1 of 2 has begun" in log
    assert "the driver has begun" in (job.root / "logs" / "attempt-1" / "job-trainer-0-driver.log").read_text()


def test_a_killed_rank_is_the_cause_and_its_neighbour_that_lost_it_is_not(gang: Make) -> None:
    job = gang(processes=2)
    job.tell(1)
    pids = [job.pid(1, 0), job.pid(1, 1), job.pid(1, "driver")]
    kill(pids[1])
    report = job.stopped("job-trainer-0", 1)
    assert report.result == "failed"
    assert report.failure
    assert (report.failure.kind, report.failure.rank, report.failure.exception) == ("killed", 1, "Signal 9 (SIGKILL)")
    assert not any(map(alive, pids))


def test_the_other_nodes_launcher_reports_that_it_only_lost_its_peer(gang: Make) -> None:
    job = gang(nodes=2)
    job.tell(1)
    job.pid(1, 0)
    kill(job.pid(1, 1))
    symptom, cause = job.stopped("job-trainer-0", 1).failure, job.stopped("job-trainer-1", 1).failure
    assert symptom and cause
    assert (symptom.kind, cause.kind) == ("collective", "killed")


def test_after_a_failure_the_next_attempt_starts_at_once(gang: Make) -> None:
    job = gang()
    job.tell(1)
    kill(job.pid(1, 0))
    job.stopped("job-trainer-0", 1)
    began = time.monotonic()
    job.tell(2)
    job.pid(2, 0)
    assert time.monotonic() - began < 3
    job.finish(2)
    assert job.stopped("job-trainer-0", 2).result == "succeeded"


def test_an_exception_reaches_the_report_with_its_last_lines(gang: Make) -> None:
    job = gang()
    job.order("rank-0", "raise")
    job.tell(1)
    failure = job.stopped("job-trainer-0", 1).failure
    assert failure
    assert (failure.kind, failure.rank, failure.exception, failure.message) == (
        "application",
        0,
        "ValueError",
        "the loss is a banana",
    )
    assert "ValueError: the loss is a banana" in failure.lines[-1]


def test_a_rank_that_leaves_without_a_word_is_quoted(gang: Make) -> None:
    job = gang()
    job.order("rank-0", "exit")
    job.tell(1)
    failure = job.stopped("job-trainer-0", 1).failure
    assert failure
    assert (failure.exception, failure.message) == ("exit code 7", "about to leave")


def test_a_driver_that_fails_ends_the_attempt_as_its_cause(gang: Make) -> None:
    job = gang()
    job.tell(1)
    rank = job.pid(1, 0)
    job.order("driver", "fail")
    failure = job.stopped("job-trainer-0", 1).failure
    assert failure
    assert (failure.rank, failure.message) == (None, "the driver gives up")
    assert not alive(rank)


def test_stop_kills_everything_an_attempt_started_even_what_left_its_session(gang: Make) -> None:
    job = gang()
    job.order("rank-0", "orphan")
    job.tell(1)
    orphan = int(wait_for("orphan", lambda: (f := job.root / "orphan").exists() and f.read_text()))
    pids = [job.pid(1, 0), job.pid(1, "driver"), orphan]
    job.tell(1, "stop")
    report = job.stopped("job-trainer-0", 1)
    assert (report.result, report.failure) == ("stopped", None)
    assert not any(map(alive, pids))
    assert "rank_program.py" in (job.root / "logs" / "attempt-1" / "job-trainer-0-0.log").read_text()  # where it stood


def test_drain_only_reaches_the_driver(gang: Make) -> None:
    job = gang()
    job.tell(1)
    job.pid(1, "driver")
    job.tell(1, "drain")
    wait_for("the driver to drain", lambda: (p := job.report("job-trainer-0").progress) and p.phase == "saving")
    job.finish(1)
    assert job.stopped("job-trainer-0", 1).result == "succeeded"


def test_a_newer_attempt_without_this_boot_ends_the_old_one(gang: Make) -> None:
    job = gang()
    job.tell(1)
    rank = job.pid(1, 0)
    job.tell(2, boots=["another boot"])
    assert job.stopped("job-trainer-0", 1).result == "stopped"
    assert not alive(rank)


def test_a_boot_that_is_not_listed_never_runs(gang: Make) -> None:
    job = gang()
    job.tell(1, boots=["the boot before"])
    time.sleep(2)
    assert job.report("job-trainer-0").state == "idle"
    assert not (job.root / "logs").exists()


def test_another_protocol_is_refused_with_both_numbers(gang: Make) -> None:
    job = gang()
    job.tell(4, protocol=99)
    report = job.stopped("job-trainer-0", 4)
    assert report.failure and report.failure.kind == "configuration"
    assert "protocol 1" in report.failure.message and "protocol 99" in report.failure.message


def test_a_volume_that_cannot_be_written_is_the_users_to_mend(gang: Make) -> None:
    job = gang()
    (job.root / "logs").write_text("in the way")
    job.tell(1)
    failure = job.stopped("job-trainer-0", 1).failure
    assert failure
    assert (failure.kind, failure.field) == ("configuration", "spec.checkpoint.path")


def test_a_launcher_told_to_leave_lets_its_attempt_end(gang: Make) -> None:
    job = gang()
    job.tell(1)
    job.pid(1, 0)
    launcher = job.launchers["job-trainer-0"]
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert launcher.poll() is None
    job.finish(1)
    assert launcher.wait(20) == 0
    assert job.report("job-trainer-0").result == "succeeded"


def test_nothing_survives_a_launcher_that_is_killed(gang: Make) -> None:
    job = gang()
    job.tell(1)
    pids = [job.pid(1, 0), job.pid(1, "driver")]
    job.close()
    wait_for("end of its processes", lambda: not any(map(alive, pids)))
    assert not {pid for pid in children() if pid != os.getpid() and alive(pid)}
