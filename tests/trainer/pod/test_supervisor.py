"""PID 1 of a rollout pod, with a stand-in for vLLM's server; the last test has the real one."""

import asyncio
from pathlib import Path

import psutil
import pytest

from rljob_api.spec.model import ModelSpec
from rljob_trainer.pod import channel, health, server_process, supervisor
from rljob_trainer.pod.health import ENGINE
from rljob_trainer.wire.rollout_client import ReplicaLost
from rljob_trainer.wire.weights.protocol import AttemptSuperseded
from trainer.pod.pods import SECONDS, Pod, is_running, until, words
from trainer.pod.watched import Watched
from trainer.server import models
from trainer.server.servers import READY_SECONDS, spec


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(server_process, "SERVER", "trainer.pod.stand_in")
        monkeypatch.setattr(server_process, "HealthCheck", Watched)
        monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.05)
        monkeypatch.setattr(supervisor, "READY_POLL_SECONDS", 0.05)
        monkeypatch.setattr(health, "POLL_SECONDS", 0.2)
        monkeypatch.setattr(server_process, "LAST_WORDS_SECONDS", 0.2)


async def test_a_server_is_started_and_reported_ready(capfd: pytest.CaptureFixture[str]) -> None:
    pod = Pod()
    pod.say(3)
    report = await pod.channel.wait(is_running)
    assert (report.pod, report.pod_uid, report.attempt, report.failure) == ("demo-rollout-0", "uid", 3, None)
    assert (await pod.state())["attempt"] == 3
    await pod.end()
    with pytest.raises(ReplicaLost):
        await pod.state()
    assert "by attempt 3" in capfd.readouterr().out


async def test_a_new_attempt_is_told_to_the_running_server() -> None:
    pod = Pod()
    pod.say(1)
    await pod.channel.wait(is_running)
    pod.say(2)
    await pod.channel.wait(lambda r: r.attempt == 2 and r.state == "running")
    assert (await pod.state())["attempt"] == 2
    await pod.end()


async def test_a_server_that_ends_is_started_again_whatever_its_exit_code() -> None:
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 2})
    await pod.channel.wait(is_running)
    ended = await pod.channel.wait(lambda r: r.failure is not None)
    assert ended.failure and (ended.state, ended.failure.kind, ended.failure.exception) == (
        "idle",
        "application",
        "exit code 0",
    )
    again = await pod.channel.wait(is_running)
    assert again.failure is None and again.boot_id == ended.boot_id
    await pod.end()


@pytest.mark.parametrize("seqs", [5, 6], ids=["while it serves", "while it starts"])
async def test_a_server_whose_engine_died_is_killed_and_started_again(
    seqs: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """vLLM's API server may live on: on a GPU it waits for ever for the connections that are open."""
    pod = Pod()
    pod.say(1, **{"max-num-seqs": seqs})
    if seqs == 5:
        await pod.channel.wait(is_running)
    first = await engine_of_the_server()
    await Watched.has_seen(first)
    first.kill()
    report = await pod.channel.wait(lambda r: r.failure is not None)
    assert report.state == "idle" and report.failure
    assert (report.failure.kind, report.failure.exception) == ("killed", "ServerLost")
    assert report.failure.message == f"the server was killed: the engine's process {first.pid} ended"
    assert seqs == 6 or report.failure.lines[0].startswith("started with")
    assert (await engine_of_the_server()).pid != first.pid
    if seqs == 5:
        await pod.channel.wait(is_running)
    await pod.end()


async def test_a_signal_that_ended_the_server_is_the_cause_also_when_its_engine_was_seen_to_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_process, "LAST_WORDS_SECONDS", 60.0)
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 5})
    await pod.channel.wait(is_running)
    engine = await engine_of_the_server()
    server = engine.parent()
    assert server
    await Watched.has_seen(engine)
    engine.kill()
    await Watched.has_a_verdict()
    server.kill()
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and (failure.kind, failure.exception) == ("killed", "Signal 9 (SIGKILL)")
    await pod.end()


async def test_a_server_that_answers_nothing_any_more_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "FROZEN_SECONDS", 5.0)
    monkeypatch.setattr(health, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(health, "ANSWER_SECONDS", 2.0)
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 5})
    await pod.channel.wait(is_running)
    await Watched.has_an_answer()
    frozen = (await engine_of_the_server()).parent()
    assert frozen
    frozen.suspend()
    report = await pod.channel.wait(lambda r: r.failure is not None)
    assert report.state == "idle" and report.failure
    assert "the API server has not answered for" in report.failure.message
    assert not frozen.is_running()
    await pod.channel.wait(is_running)
    await pod.end()


async def test_a_server_that_is_frozen_as_soon_as_it_is_ready_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor has its first answer, the health check never gets one."""
    monkeypatch.setattr(health, "FROZEN_SECONDS", 3.0)
    monkeypatch.setattr(health, "ANSWER_SECONDS", 2.0)
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 11})
    await pod.channel.wait(is_running)
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and "the API server has not answered for" in failure.message
    await pod.end()


async def test_an_engine_that_is_frozen_during_an_update_is_killed_long_before_an_update_would_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it only waits for the trainer, its processes run."""
    monkeypatch.setattr(health, "STILL_SECONDS", 3.0)
    monkeypatch.setattr(health, "ASK_SECONDS", 0.2)
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 10})
    await pod.channel.wait(is_running)
    engine = await engine_of_the_server()
    await Watched.has_seen(engine)
    await asyncio.sleep(3 * health.STILL_SECONDS)  # nothing may be found meanwhile
    assert [r for r in pod.channel.reports if r.failure] == []
    engine.suspend()
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and f"the engine's process {engine.pid} has not run for 3 s (stopped)" in failure.message
    await pod.end()


async def test_an_engine_that_fails_to_start_is_reported_with_its_own_error() -> None:
    """The API server stands, as one does whose engine died while others were connected."""
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 7})
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and (failure.kind, failure.exception) == ("application", "OutOfMemoryError")
    assert failure.message == "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert failure.lines[-1].endswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    await pod.end()


async def test_a_server_that_loads_nothing_any_more_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 5.0)
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 6})
    stuck = await engine_of_the_server()
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and (failure.kind, failure.exception) == ("killed", "ServerLost")
    assert "neither logged nor read anything for 5 s while it started" in failure.message
    await until(lambda: not stuck.is_running() or stuck.status() == psutil.STATUS_ZOMBIE)  # SIGKILL takes a moment
    assert (await engine_of_the_server()).pid != stuck.pid
    await pod.end()


async def test_a_server_may_load_for_any_time_as_long_as_something_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes twice the limit; of one server it shows in what it reads, of the other in its log."""
    monkeypatch.setattr(health, "STUCK_SECONDS", 5.0)
    pods = [Pod(), Pod()]
    for pod, seqs in zip(pods, (8, 9), strict=True):
        pod.say(1, **{"max-num-seqs": seqs})
    for pod in pods:
        ready = await pod.channel.wait(is_running)
        assert ready.failure is None and [r for r in pod.channel.reports if r.failure] == []
    for pod in pods:
        await pod.end()


async def engine_of_the_server() -> psutil.Process:
    """Once there is one."""
    async with asyncio.timeout(SECONDS):
        while True:
            for process in psutil.Process().children(recursive=True):
                if ENGINE.search(" ".join(words(process))):
                    return process
            await asyncio.sleep(0.05)


async def test_refused_arguments_are_the_users_to_mend_and_a_new_spec_restarts_the_server() -> None:
    pod = Pod()
    pod.say(1, **{"max-num-seqs": 1})
    failure = (await pod.channel.wait(lambda r: r.failure is not None)).failure
    assert failure and (failure.kind, failure.field) == ("configuration", "spec.rollout.vllmArgs")
    assert failure.lines[-1] == "error: argument --max-num-seqs: 1 is not enough"
    pod.say(1, **{"max-num-seqs": 3})
    await pod.channel.wait(is_running)
    pod.say(2, **{"max-num-seqs": 4})
    await pod.channel.wait(lambda r: r.state == "idle")
    report = await pod.channel.wait(is_running)
    assert report.attempt == 2 and report.failure is None, "a restart of ours is no failure"
    await pod.end()


async def test_an_operator_of_another_protocol_is_named_until_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REPORT_SECONDS", 0.05)
    pod = Pod()
    pod.channel.words.put_nowait(channel.ProtocolMismatch(99, "trainer:test", 3))
    refused = await pod.channel.wait(lambda r: r.failure is not None)
    assert refused.failure and (refused.failure.kind, refused.failure.field) == ("configuration", "spec.image")
    pod.say(3)
    assert (await pod.channel.wait(is_running)).failure is None
    pod.channel.words.put_nowait(channel.ProtocolMismatch(99, "trainer:test", 4))
    assert (await pod.channel.wait(lambda r: r.failure is not None)).state == "running", "what runs may run on"
    await pod.end()


async def test_a_model_that_cannot_be_read_is_reported_and_tried_again(tmp_path: Path) -> None:
    pod, lora = (
        Pod(tmp_path),
        spec(tmp_path).model_copy(update={"model": ModelSpec(path=str(tmp_path), lora={"rank": 4})}),
    )
    (tmp_path / "config.json").write_text("{")
    pod.order(lora)
    unread = await pod.channel.wait(lambda r: r.failure is not None)
    assert unread.failure and (unread.state, unread.failure.exception) == ("idle", "JSONDecodeError")
    pod.order(lora.model_copy(update={"image": "another"}))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert (await pod.channel.wait(is_running)).failure is None
    await pod.end()


async def test_a_report_comes_regularly_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REPORT_SECONDS", 0.05)
    pod = Pod()
    await until(lambda: len(pod.channel.reports) > 4)
    assert {r.state for r in pod.channel.reports} == {"idle"}
    await pod.end()


@pytest.mark.slow
async def test_a_real_server_starts_is_killed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    pod = Pod(models.make(tmp_path / "model", seed=1))
    pod.say(4)
    await pod.channel.wait(is_running, READY_SECONDS)
    assert await pod.state(4) == {"attempt": 4, "policy_step": None, "digest": "", "cache_tokens": 204_800}
    with pytest.raises(AttemptSuperseded):
        await pod.state(3)
    family = server_processes()
    family[0].kill()
    report = await pod.channel.wait(lambda r: r.failure is not None)
    assert report.failure and (report.failure.kind, report.failure.exception) == ("killed", "Signal 9 (SIGKILL)")
    await pod.channel.wait(is_running, READY_SECONDS)
    family += server_processes()
    await pod.end()
    assert len(family) >= 4, "a server and its engine, twice"
    assert psutil.wait_procs(family, timeout=SECONDS)[1] == []


@pytest.mark.slow
async def test_a_real_engine_that_fails_to_start_is_reported_with_its_own_error(tmp_path: Path) -> None:
    pod = Pod(models.make(tmp_path / "model", seed=1))
    pod.say(1, **{"kv-cache-memory-bytes": 4096})
    failure = (await pod.channel.wait(lambda r: r.failure is not None, READY_SECONDS)).failure
    assert failure and (failure.kind, failure.exception) == ("application", "ValueError")
    assert "memory for the cache blocks" in failure.message, (
        "what the engine says, and not that somebody should look further up"
    )
    await pod.end()


def server_processes() -> list[psutil.Process]:
    """The server that this process's supervisor started, and what that started."""
    (server,) = [p for p in psutil.Process().children() if "rljob_trainer.server.server" in words(p)]
    return [server, *server.children(recursive=True)]
