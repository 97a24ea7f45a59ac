"""Reward functions in pods of their own: the whole driver, and pods that run real processes and reach it over loopback."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.workers.workers import TRIES
from trainer.agents.talker import first_step
from trainer.driver.bench import Bench
from trainer.driver.servers import Server
from trainer.pod.pods import until
from trainer.workers.pods import Pod, impatient_bench

NOTES = """
import os, time

def flood():
    os.write(1, b"x" * 2**20)
    return {f"metric_{i}" * 1000: i for i in range(1000)}

def reward(response, answer, row):
    with open("WHERE/" + os.environ["RLJOB_FAMILY"], "a") as calls:
        calls.write(row["prompt"] + " ")
    HOW
    return {"score": float(response == answer), "length": len(response)}
"""
"""Writes down which process was asked what."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = impatient_bench(tmp_path, monkeypatch)
    found.spec["train"]["promptsPerStep"] = 12
    return found


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """The calls, by process."""
    directory = tmp_path / "where"
    directory.mkdir()
    return directory


def in_pods(bench: Bench, where: Path, code: str = NOTES, how: str = "pass", seconds: float = 20) -> None:
    """The driver's second reward is this function, in two pods."""
    file = where.parent / "judge.py"
    file.write_text(code.replace("WHERE", str(where)).replace("HOW", how))
    python = {"python": {"path": str(file)}, "timeoutSeconds": seconds, "workers": {"replicas": 2, "processes": 1}}
    bench.spec["rewards"] = [{"rule": "exactMatch", "dataSource": "else"}, python]


@asynccontextmanager
async def pods(bench: Bench, *ordinals: int) -> AsyncIterator[list[Pod]]:
    found = [Pod(bench, f"demo-scorer1-{i}") for i in ordinals]
    yield found
    for pod in found:
        await pod.end()


def taken(where: Path) -> list[int]:
    """How many calls each process has had."""
    return [len(file.read_text().split()) for file in where.iterdir()]


def asked(where: Path) -> Counter[str]:
    """How often the function was called for each prompt."""
    return Counter(prompt for file in where.iterdir() for prompt in file.read_text().split())


def scored(batch: Batch) -> list[tuple[int, int, float]]:
    """Row of the data, number of the sample, and reward."""
    return sorted((s.prompt_index, s.sample, s.reward) for s in batch.samples)


EVERY = [(row, sample, 1.0) for row in range(12) for sample in range(3)]


async def test_pods_score_as_processes_next_to_the_driver_do_and_each_sample_once(
    bench: Bench, where: Path, tmp_path: Path
) -> None:
    in_pods(bench, where, how="time.sleep(0.05)")
    async with pods(bench, 0, 1):
        found, _ = await first_step(bench, Server("demo-rollout-0"))
    assert scored(found) == EVERY and found.metrics["reward/failed"] == 0.0
    assert found.metrics["reward_metrics/length"] == 1.0
    assert len(taken(where)) == 2, "each pod has taken some"
    assert sorted(asked(where).values()) == [3] * 12 and sum(taken(where)) == 36
    (tmp_path / "own").mkdir()
    own = Bench(tmp_path / "own")
    own.spec["train"] = bench.spec["train"]
    own.spec["rewards"] = [bench.spec["rewards"][1] | {"workers": None}]
    other, _ = await first_step(own, Server("demo-rollout-0"))
    assert scored(other) == EVERY and other.metrics["reward_metrics/length"] == 1.0


async def test_a_sample_whose_process_dies_once_is_scored_again(bench: Bench, where: Path) -> None:
    """Nobody knows whether the function or the node has ended it."""
    in_pods(
        bench,
        where,
        how=f"if not os.path.exists('{where.parent}/first'): os.mkdir('{where.parent}/first'); os._exit(3)",
    )
    async with pods(bench, 0) as (pod,):
        failed = asyncio.create_task(pod.channel.wait(lambda report: report.failure is not None))
        found, _ = await first_step(bench, Server("demo-rollout-0"))
        assert scored(found) == EVERY and found.metrics["reward/failed"] == 0.0
        report = await failed
        assert report.failure and report.failure.exception == "exit code 3"
    assert sum(asked(where).values()) == 37, "one of them twice"


async def test_a_pod_that_is_lost_costs_no_sample_and_one_that_comes_late_takes_its_share(
    bench: Bench, where: Path
) -> None:
    in_pods(bench, where, how=f"while not os.path.exists('{where.parent}/lost'): time.sleep(0.01)")

    async def lose() -> Pod:
        async with pods(bench, 0):
            await until(lambda: sum(asked(where).values()) == 1)
        (where.parent / "lost").mkdir()
        return Pod(bench, "demo-scorer1-1")

    losing = asyncio.create_task(lose())
    found, _ = await first_step(bench, Server("demo-rollout-0"))
    assert scored(found) == EVERY and found.metrics["reward/failed"] == 0.0
    assert sum(asked(where).values()) == 37
    await (await losing).end()


@pytest.mark.parametrize(
    ("how", "kind", "said", "calls"),
    [
        ("if row['prompt'] == '1+1=': raise ValueError('no judge')", "raised", "no judge", 3),
        ("if row['prompt'] == '1+1=': time.sleep(600)", "timeout", "took longer than 2 s", 3),
        ("if row['prompt'] == '1+1=': return 'good'", "value", "'good', which is not a finite number", 3),
        ("if row['prompt'] == '1+1=': return flood()", "value", "a dict without 'score'", 3),
        ("if row['prompt'] == '1+1=': os._exit(3)", "raised", "its process ended during the call", 3 * TRIES),
    ],
    ids=["raises", "hangs", "nonsense", "floods", "dies"],
)
async def test_a_function_that_fails_costs_its_samples_and_is_named_once(
    bench: Bench, where: Path, caplog: pytest.LogCaptureFixture, how: str, kind: str, said: str, calls: int
) -> None:
    in_pods(bench, where, how=how, seconds=2 if kind == "timeout" else 60)
    async with pods(bench, 0, 1):
        found, _ = await first_step(bench, Server("demo-rollout-0"))
    assert scored(found) == [sample for sample in EVERY if sample[0] != 0]
    assert found.metrics["reward/failed"] == found.metrics[f"reward/failed_{kind}"] == 3.0
    (message,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert "spec.rewards[1].python.path" in message
    assert asked(where)["1+1="] == calls, "what the function does, it would do again"


async def test_calls_of_an_async_function_run_at_the_same_time_in_one_process(bench: Bench, where: Path) -> None:
    code = """
import asyncio
together, all_here = 0, asyncio.Event()

async def reward(response, answer):
    global together
    together += 1
    if together == 36:
        all_here.set()
    await all_here.wait()
    return float(response == answer)
"""
    in_pods(bench, where, code)
    async with pods(bench, 0):
        found, _ = await first_step(bench, Server("demo-rollout-0"))
    assert scored(found) == EVERY


async def test_mathematics_is_judged_in_pods_too(bench: Bench) -> None:
    bench.spec["rewards"] = [{"rule": "math", "timeoutSeconds": 60, "workers": {"processes": 1}}]
    pod = Pod(bench, "demo-scorer0-0")
    found, _ = await first_step(bench, Server("demo-rollout-0"))
    assert scored(found) == EVERY
    await pod.end()


async def test_a_job_without_any_worker_says_that_it_waits(bench: Bench, where: Path) -> None:
    in_pods(bench, where)
    step = asyncio.create_task(first_step(bench, Server("demo-rollout-0")))
    await bench.in_phase("waiting")
    async with pods(bench, 1):
        found, _ = await step
    assert scored(found) == EVERY


@pytest.mark.parametrize(
    ("code", "changes", "said"),
    [
        ("import nowhere", {}, r"rewards\[1\]\.python\.path = .*cannot be loaded: .*nowhere"),
        (NOTES, {"arguments": {"scale": 2}}, r"rewards\[1\]\.python\.arguments\.scale = 2: reward\(\) in .* takes no"),
    ],
)
async def test_what_no_pod_can_use_fails_the_job(
    bench: Bench, where: Path, code: str, changes: dict[str, object], said: str
) -> None:
    in_pods(bench, where, code)
    bench.spec["rewards"][1]["python"] |= changes
    async with pods(bench, 0, 1):
        with pytest.raises(ConfigurationError, match=said):
            await first_step(bench, Server("demo-rollout-0"))


async def test_a_pod_of_the_agent_scores_nothing(bench: Bench, where: Path) -> None:
    """And the other way round: a pod runs what its role says."""
    in_pods(bench, where)
    pod = Pod(bench, "demo-worker-0")
    other = Pod(bench, "demo-scorer0-0")
    await pod.channel.wait(lambda report: report.state == "idle")
    assert pod.inside.pids == other.inside.pids == set()
    await pod.end()
    await other.end()
