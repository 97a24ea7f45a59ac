"""Agents in pods of their own: the whole driver, and pods that run real processes and reach it over loopback."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from rljob_trainer.agents import python_file
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.pod import worker_life
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.channel import encode
from rljob_trainer.workers import remote
from rljob_trainer.workers.remote import frame
from rljob_trainer.workers.workers import TRIES
from trainer.agents.in_pods import bench_of_agents, each_once, in_pods, saying_where
from trainer.agents.talker import Talker, first_step, with_agent
from trainer.driver.bench import Bench
from trainer.pod.pods import SECONDS, until
from trainer.workers.pods import TOKEN, Pod


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_of_agents(tmp_path, monkeypatch)


def ids(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(sample.tokens.tolist()) for sample in batch.samples]


async def test_pods_make_the_trajectories_that_processes_next_to_the_driver_make(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "where"
    where.mkdir()
    code = saying_where(where)
    monkeypatch.setattr(python_file, "AT_ONCE", 4)
    in_pods(bench, tmp_path, code)
    pods = [Pod(bench, f"demo-worker-{i}") for i in range(2)]
    found, server = await first_step(bench, Talker("demo-rollout-0"), delay=0.2)
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    assert len(server.requests) == 72, "two turns of each sample, and none twice"
    taken = [len(file.read_text()) for file in where.iterdir()]
    assert len(taken) == 2 and sum(taken) == 36, "each pod has taken some"
    for pod in pods:
        await pod.end()
    (tmp_path / "own").mkdir()
    own, other = Bench(tmp_path / "own"), found
    own.spec["rewards"], own.spec["train"] = [], bench.spec["train"]
    with_agent(own.spec, tmp_path, code)
    found, _ = await first_step(own, Talker("demo-rollout-0"))
    assert ids(found) == ids(other)


ENDS = """
import asyncio, os
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(prompt.tokens)
    try:
        os.mkdir("FIRST")
    except FileExistsError:
        turn = await policy.generate(turn.whole + await policy.encode("]"))
        return Trajectory(turn.whole)
    HOW
"""


async def test_trajectories_of_a_process_that_dies_begin_anew_and_its_pod_says_why_and_joins_again(
    bench: Bench, tmp_path: Path
) -> None:
    in_pods(bench, tmp_path, ENDS.replace("FIRST", str(tmp_path / "first")).replace("HOW", "os._exit(3)"))
    pod = Pod(bench)
    failed = asyncio.create_task(pod.channel.wait(lambda report: report.failure is not None))
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    report = await failed
    assert report.failure and report.failure.exception == "exit code 3" and report.state == "idle"
    assert any(r.state == "running" and not r.failure for r in pod.channel.reports[-2:]), "it has joined again"
    await pod.end()


async def test_a_pod_that_is_lost_costs_no_trajectory_and_one_that_comes_late_takes_its_share(
    bench: Bench, tmp_path: Path
) -> None:
    in_pods(
        bench, tmp_path, ENDS.replace("FIRST", str(tmp_path / "first")).replace("HOW", "await asyncio.Event().wait()")
    )
    lost = Pod(bench)

    async def lose() -> Pod:
        await until((tmp_path / "first").exists)
        (process,) = await lost.processes(1)
        await lost.end()
        assert not process.is_running()
        return Pod(bench, "demo-worker-1")

    losing = asyncio.create_task(lose())
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    await (await losing).end()


async def test_a_trajectory_outlives_any_number_of_pods_that_leave(bench: Bench, tmp_path: Path) -> None:
    code = ENDS.replace("FIRST", str(tmp_path / "first")).replace("HOW", "await asyncio.Event().wait()")
    in_pods(bench, tmp_path, code)

    async def leave() -> Pod:
        for i in range(TRIES):
            pod = Pod(bench, f"demo-worker-{i}")
            await until((tmp_path / "first").exists)
            await pod.end()
            if i < TRIES - 1:
                (tmp_path / "first").rmdir()
        return Pod(bench)

    leaving = asyncio.create_task(leave())
    bench.spec["train"] |= {"promptsPerStep": 1, "samplesPerPrompt": 1}
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert len(found.samples) == 1 and found.metrics["agent/failed"] == 0.0
    await (await leaving).end()


POISON = """
import asyncio, os
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    await asyncio.sleep(0.05 if prompt.answer == "3" else 0.3)
    if prompt.answer == "3":
        os._exit(3)
    turn = await policy.generate(prompt.tokens)
    return Trajectory(turn.whole)
"""
"""Two of twelve prompts end their process, while the others run in it."""


async def test_a_row_that_ends_every_process_takes_no_other_along(bench: Bench, tmp_path: Path) -> None:
    in_pods(bench, tmp_path, POISON)
    bench.spec["train"]["samplesPerPrompt"] = 1
    pod = Pod(bench)
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert found.metrics["agent/failed"] == found.metrics["agent/failed_raised"] == 2.0
    assert len(found.samples) == 10
    await pod.end()


async def test_a_connection_that_is_silent_is_given_up_and_its_trajectories_begin_anew(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(worker_life, "BEAT_SECONDS", 0.2)
    in_pods(bench, tmp_path)
    hello = {"takes": [], "concurrent": True, "tools": []}

    async def freeze() -> Pod:
        for _ in range(TRIES):
            reader, writer = await connected(bench)
            writer.write(remote.framed(json.dumps(hello).encode()))
            assert await reader.read(1), "it is given trajectories"
            await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
        return Pod(bench)

    freezing = asyncio.create_task(freeze())
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    await (await freezing).end()


async def connected(bench: Bench, **changes: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As a worker pod connects, once the driver listens."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", bench.service_port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.write(encode({"role": "worker", "attempt": 1, "token": TOKEN, "pod": "p"} | changes))
            try:
                await frame(reader)
            except EOFError:
                writer.close()
                if changes:
                    raise
                await asyncio.sleep(0.02)  # the driver listens, and does not know its workers yet
                continue
            return reader, writer


@pytest.mark.parametrize("stranger", [{"token": "guess"}, {"attempt": 2}, {"role": "critic"}])
async def test_who_does_not_know_the_token_or_is_of_another_attempt_gets_no_trajectory(
    bench: Bench, tmp_path: Path, stranger: dict[str, object]
) -> None:
    in_pods(bench, tmp_path)
    step = asyncio.create_task(first_step(bench, Talker("demo-rollout-0")))
    await connected(bench)
    with pytest.raises(EOFError):
        await connected(bench, **stranger)
    step.cancel()


async def test_a_pod_with_another_token_says_why_it_has_nothing_to_do(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_life, "REFUSALS", 3)
    in_pods(bench, tmp_path)
    step, pod = asyncio.create_task(first_step(bench, Talker("demo-rollout-0"))), Pod(bench, token="guess")
    report = await pod.channel.wait(lambda r: r.failure is not None)
    assert report.failure and report.failure.message == worker_life.REFUSED
    assert caplog.text.count("refused a connection") == 1, "the driver does not repeat itself"
    await pod.end()
    step.cancel()


async def test_a_job_without_any_worker_says_that_it_waits(bench: Bench, tmp_path: Path) -> None:
    in_pods(bench, tmp_path)
    step = asyncio.create_task(first_step(bench, Talker("demo-rollout-0")))
    await bench.in_phase("waiting")
    pod = Pod(bench)
    found, _ = await step
    assert each_once(found)
    await pod.end()


async def test_what_no_pod_can_load_fails_the_job_and_is_reported_by_the_pod(bench: Bench, tmp_path: Path) -> None:
    in_pods(bench, tmp_path, "import nowhere")
    pod, other = Pod(bench), Pod(bench, "demo-worker-1")
    with pytest.raises(ConfigurationError, match=r"cannot be loaded: .*nowhere"):
        await first_step(bench, Talker("demo-rollout-0"))
    report = await pod.channel.wait(lambda r: r.failure is not None)
    assert report.failure and "nowhere" in report.failure.message
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{pod.port}/health") as answer:
        assert answer.status == 503
    await pod.end()
    await other.end()


async def test_the_driver_learns_from_a_pod_which_tools_the_chat_template_shows(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    in_pods(bench, tmp_path)
    bench.spec["rollout"]["agent"].pop("python")
    bench.spec["rollout"]["agent"]["tools"] = {"path": str(file), "functions": ["add"]}
    bench.control()
    await bench.connect()
    file = bench.directory / "progress.json"
    await until(lambda: file.exists() and bench.progress().awaiting == main.WORKERS)
    pod = Pod(bench)
    with pytest.raises(
        ConfigurationError, match=r"the policy would not see the functions of spec\.rollout\.agent\.tools"
    ):
        await bench.driver
    await pod.end()


THROUGH_A_CLIENT = """
import asyncio, json, urllib.request
from rljob_trainer.agents import Trajectory

def ask(url):
    body = json.dumps({"messages": []}).encode()
    request = urllib.request.Request(url + "/chat/completions", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]["message"]

async def rollout(prompt, policy, row):
    assert "chat template" in await asyncio.to_thread(ask, policy.base_url), policy.base_url
    turn = await policy.generate(prompt.tokens)
    return Trajectory(turn.whole)
"""


async def test_client_libraries_in_pods_reach_the_policy(bench: Bench, tmp_path: Path) -> None:
    in_pods(bench, tmp_path, THROUGH_A_CLIENT)
    pod = Pod(bench)
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    await pod.end()


async def test_a_pod_serves_one_attempt_after_another_and_nothing_of_the_former_is_left(
    bench: Bench, tmp_path: Path
) -> None:
    in_pods(bench, tmp_path, processes=2)
    welcomed = Counter[int]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = json.loads(await frame(reader))
        welcomed[hello["attempt"]] += 1
        writer.write(encode({}))
        while await reader.read(2**16):
            pass
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", bench.service_port)
    pod = Pod(bench)
    first = await pod.processes(2)
    bench.spec["rollout"]["agent"]["workers"]["replicas"] = 7
    pod.say()
    pod.say(attempt=2)
    await until(lambda: welcomed[2] == 2 and not any(p.is_running() for p in first))
    second = await pod.processes(2)
    pod.say(attempt=2, command="drain")
    pod.say(attempt=2, command="stop")
    await pod.processes(0)
    assert welcomed == {1: 2, 2: 2} and not any(p.is_running() for p in second)
    await pod.end()
    server.close()
