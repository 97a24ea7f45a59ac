"""Real launchers, real torchrun agents, real gloo; ranks and driver without a model."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rljob_api import names
from rljob_api.protocol import Member
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Source
from rljob_trainer.checkpoint.exports import CHOSEN
from trainer.pod.conftest import Make
from trainer.pod.gang import TIMEOUT, Gang, alive, kill, wait_for
from trainer.sources.servers import Handler, serving


def test_an_attempt_runs_on_all_nodes_and_each_launcher_reports_that_it_succeeded(pair: Gang) -> None:
    attempt = pair.start()
    first, second = pair.pods
    pair.pid(attempt, 1)
    wait_for("progress", lambda: (p := pair.report(first).progress) and p.heartbeat > 5)
    assert pair.report(second).progress is None
    pair.finish(attempt)
    for pod in pair.pods:
        assert pair.stopped(pod, attempt).result == "succeeded"
    assert "rank 1 of 2 has begun" in pair.log(attempt, "rank-1")
    assert "the driver has begun" in pair.log(attempt, "driver")


def test_a_launcher_that_stands_by_warms_the_driver_too_and_runs_the_attempt_after(pair: Gang) -> None:
    """It may stand in for the pod of rank 0, where the driver is. Others have no need of one."""
    first, second = pair.pods

    def drivers() -> list[psutil.Process]:
        children = psutil.Process(pair.launchers[second].pid).children()
        return [child for child in children if "driver_program" in child.cmdline()]

    assert not drivers()
    alone = Member(pod=first, pod_uid="uid", boot_id=pair.report(first).boot_id, node_rank=0, address="127.0.0.1")
    pair.tell(pair.attempt + 1, members=[alone])
    wait_for("a fork server for the driver", drivers)
    pair.finish(pair.attempt)
    assert pair.stopped(first, pair.attempt).result == "succeeded"
    assert pair.report(second).state == "idle" or pair.report(second).attempt < pair.attempt
    spare = alone.model_copy(update={"pod": second, "boot_id": pair.report(second).boot_id})
    pair.tell(pair.attempt + 1, members=[spare])
    pair.pid(pair.attempt, "driver")
    pair.finish(pair.attempt)
    assert pair.stopped(second, pair.attempt).result == "succeeded"


def test_the_launcher_of_a_node_that_lost_its_peer_names_a_symptom_and_the_other_the_cause(pair: Gang) -> None:
    attempt = pair.start()
    pair.pid(attempt, 0)
    kill(pair.pid(attempt, 1))
    symptom, cause = (pair.stopped(pod, attempt).failure for pod in pair.pods)
    assert symptom and cause
    assert (symptom.kind, cause.kind) == ("collective", "killed")


def test_a_killed_rank_is_the_cause_and_its_neighbour_that_lost_it_is_not(solo: Gang) -> None:
    attempt = solo.start()
    pids = [solo.pid(attempt, 0), solo.pid(attempt, 1), solo.pid(attempt, "driver")]
    kill(pids[1])
    report = solo.stopped(solo.pods[0], attempt)
    assert report.result == "failed"
    assert report.failure
    assert (report.failure.kind, report.failure.rank, report.failure.exception) == ("killed", 1, "Signal 9 (SIGKILL)")
    assert not any(map(alive, pids))


def test_an_exception_reaches_the_report_with_its_last_lines(solo: Gang) -> None:
    solo.order("rank-0", "raise")
    failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure
    assert (failure.kind, failure.rank, failure.exception) == ("application", 0, "ValueError")
    assert failure.message == "the loss is a banana"
    assert failure.lines[-1] == "ValueError: the loss is a banana"


def test_a_mistake_of_the_users_reaches_the_report_with_its_field(solo: Gang) -> None:
    solo.order("rank-1", "configuration")
    failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure
    assert (failure.kind, failure.field) == ("configuration", "spec.data.train")
    assert failure.message == "spec.data.train = /nowhere.parquet: does not exist; mount it"


def test_all_mistakes_about_the_adapters_to_begin_from_reach_the_report_before_a_rank_begins(
    solo: Gang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    lora = {"path": str(tmp_path), "rank": 8, "alpha": 16}
    wrong = RLJobSpec.model_validate(solo.spec.dump() | {"model": {"path": "/data/model", "lora": lora}})
    monkeypatch.setattr(solo, "spec", wrong)  # the tests share the gang
    failure = solo.stopped(solo.pods[0], attempt := solo.start()).failure
    assert failure
    assert (failure.kind, failure.rank, failure.field) == ("configuration", None, "spec.model.lora.path")
    assert [line.split(" = ")[0].removeprefix("spec.model.lora.") for line in failure.message.splitlines()] == [
        "path",
        "rank",
        "alpha",
    ]
    assert not list((solo.root / "logs" / f"attempt-{attempt}").glob("rank-*"))


def test_an_export_that_the_other_run_has_deleted_reaches_the_report_before_a_rank_begins(
    solo: Gang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"run": str(tmp_path), "model": str(tmp_path / "exports" / "step_3")}
    (tmp_path / CHOSEN).write_text(json.dumps(own))
    sections = {"model": {"path": str(tmp_path)}, "checkpoint": {"path": str(tmp_path)}}
    monkeypatch.setattr(solo, "spec", RLJobSpec.model_validate(solo.spec.dump() | sections))
    failure = solo.stopped(solo.pods[0], attempt := solo.start()).failure
    assert failure
    assert (failure.kind, failure.field) == ("configuration", "spec.model.path")
    assert f"this job began from {own['model']}" in failure.message
    assert not list((tmp_path / "logs" / f"attempt-{attempt}").glob("rank-*"))


def test_a_rank_that_leaves_without_a_word_is_quoted(solo: Gang) -> None:
    solo.order("rank-0", "exit")
    failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure
    assert (failure.exception, failure.message) == ("exit code 7", "about to leave")


def test_a_driver_that_fails_ends_the_attempt_as_its_cause(solo: Gang) -> None:
    attempt = solo.start()
    rank = solo.pid(attempt, 0)
    solo.order("driver", "fail")
    failure = solo.stopped(solo.pods[0], attempt).failure
    assert failure
    assert (failure.rank, failure.message) == (None, "the driver gives up")
    assert not alive(rank)


def test_stop_kills_everything_an_attempt_started_even_what_left_its_session(solo: Gang) -> None:
    solo.order("rank-0", "orphan")
    attempt = solo.start()
    orphan = int(wait_for("orphan", lambda: (f := solo.root / "orphan").exists() and f.read_text()))
    pids = [solo.pid(attempt, 0), solo.pid(attempt, "driver"), orphan]
    solo.tell(attempt, "stop")
    report = solo.stopped(solo.pods[0], attempt)
    assert (report.result, report.failure) == ("stopped", None)
    assert not any(map(alive, pids))


def test_a_stopped_rank_leaves_in_its_log_where_it_stood(solo: Gang) -> None:
    attempt = solo.start()
    solo.pid(attempt, 0)
    solo.tell(attempt, "stop")
    solo.stopped(solo.pods[0], attempt)
    assert "rank_program.py" in solo.log(attempt, "rank-0")


def test_drain_reaches_the_driver_which_lets_the_attempt_end(solo: Gang) -> None:
    attempt = solo.start()
    solo.pid(attempt, "driver")
    solo.tell(attempt, "drain")
    assert solo.stopped(solo.pods[0], attempt).result == "drained"


def test_a_newer_attempt_without_this_boot_ends_the_old_one_and_is_not_run(solo: Gang) -> None:
    attempt = solo.start()
    rank = solo.pid(attempt, 0)
    solo.tell(attempt + 1, boots=["another boot"])
    assert solo.stopped(solo.pods[0], attempt).result == "stopped"
    assert not alive(rank)
    time.sleep(0.5)  # for a report of the newer attempt, which must not come
    assert solo.report(solo.pods[0]).attempt == attempt


def test_an_attempt_that_is_over_before_it_began_here_is_declined(solo: Gang) -> None:
    solo.tell(solo.attempt + 1, "stop")
    assert solo.stopped(solo.pods[0], solo.attempt).result == "stopped"


def test_a_volume_that_cannot_be_written_is_the_users_to_mend(solo: Gang) -> None:
    (solo.root / "logs" / f"attempt-{solo.attempt + 1}").write_text("in the way")
    failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure
    assert (failure.kind, failure.field) == ("configuration", "spec.checkpoint.path")


def test_a_log_that_cannot_be_opened_is_named_as_the_cause(solo: Gang) -> None:
    names.rank_log(solo.root, solo.attempt + 1, 0).mkdir(parents=True)
    failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure and failure.exception == "IsADirectoryError" and "rank-0.log" in failure.message


def test_what_the_launcher_itself_cannot_do_ends_the_attempt_with_its_error_and_the_next_one_runs(solo: Gang) -> None:
    record = solo.root.parent / "half/.rljob/source.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with reading(solo, "https://files.invalid/train.jsonl", "half"):
        failure = solo.stopped(solo.pods[0], solo.start()).failure
    assert failure and (failure.kind, failure.exception) == ("application", "JSONDecodeError")
    attempt = solo.start()
    solo.finish(attempt)
    assert solo.stopped(solo.pods[0], attempt).result == "succeeded"


def test_another_protocol_is_refused_with_both_numbers(gangs: Make) -> None:
    job = gangs()
    job.tell(4, protocol=99)
    failure = job.stopped(job.pods[0], 4).failure
    assert failure and failure.kind == "configuration"
    assert "trainer:test, speaks protocol 1" in failure.message and "protocol 99" in failure.message


def test_a_launcher_told_to_leave_lets_its_attempt_end(gangs: Make) -> None:
    job = gangs()
    attempt = job.start()
    job.pid(attempt, 0)
    (launcher,) = job.launchers.values()
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # for an end that must not come
    assert launcher.poll() is None
    job.finish(attempt)
    assert launcher.wait(TIMEOUT) == 0
    assert job.report(job.pods[0]).result == "succeeded"


def test_nothing_survives_a_launcher_that_is_killed(gangs: Make) -> None:
    job = gangs()
    attempt = job.start()
    pids = [job.pid(attempt, 0), job.pid(attempt, "driver")]
    job.close()
    wait_for("end of its processes", lambda: not any(map(alive, pids)))


def test_sigterm_stops_the_attempt_of_a_deleted_job_at_once(gangs: Make) -> None:
    """Nobody is left to drain it: without this the pods stay for their whole grace period."""
    gang = gangs()
    attempt = gang.start()
    pids = [gang.pid(attempt, 0), gang.pid(attempt, "driver")]
    (launcher,) = gang.launchers.values()
    gang.forget()
    time.sleep(1)  # for an end that must not come
    assert launcher.poll() is None and all(map(alive, pids)), "no SIGTERM: the operator may make the message again"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(TIMEOUT) == 0
    assert not any(map(alive, pids))
    assert gang.report(gang.pods[0]).result == "stopped"


@contextmanager
def reading(gang: Gang, address: str, name: str) -> Iterator[None]:
    """Its attempts have a source."""
    before, source = gang.spec, Source(source=address, path=str(gang.root.parent / name))
    gang.spec = before.model_copy(update={"data": before.data.model_copy(update={"sources": [source]})})
    try:
        yield
    finally:
        gang.spec = before


def test_no_rank_of_any_node_begins_before_node_rank_0_has_fetched_the_data(pair: Gang) -> None:
    first = pair.pods[0]
    with (
        serving(Handler, {"train.jsonl": b"rows"}, held=True) as (url, files),
        reading(pair, f"{url}/train.jsonl", "a"),
    ):
        attempt = pair.start()
        wait_for("its progress", lambda: (p := pair.report(first).progress) and p.phase == "fetching")
        assert not (pair.root / f"pid-{attempt}-0").exists() and not (pair.root / f"pid-{attempt}-1").exists()
        files.release.set()
        pair.pid(attempt, 1)
        assert (pair.root.parent / "a/train.jsonl").read_bytes() == b"rows"
        pair.finish(attempt)
        assert [pair.stopped(pod, attempt).result for pod in pair.pods] == ["succeeded", "succeeded"]


def test_a_source_that_is_wrong_ends_the_attempt_with_its_field(pair: Gang) -> None:
    first, second = pair.pods
    with serving(Handler, {}) as (url, _), reading(pair, f"{url}/none", "b"):
        attempt = pair.start()
        failure = pair.stopped(first, attempt).failure
        assert failure and (failure.kind, failure.field) == ("configuration", "spec.data.sources[0].source")
        pair.tell(attempt, "stop")
        assert pair.stopped(second, attempt).result == "stopped"


def test_an_attempt_that_is_stopped_while_it_fetches_leaves_no_process(pair: Gang) -> None:
    with (
        serving(Handler, {"train.jsonl": b"rows"}, held=True) as (url, files),
        reading(pair, f"{url}/train.jsonl", "c"),
    ):
        attempt = pair.start()
        wait_for("its request", lambda: files.requests)
        pair.tell(attempt, "stop")
        assert [pair.stopped(pod, attempt).result for pod in pair.pods] == ["stopped", "stopped"]
        files.release.set()
