"""An environment of the library verifiers, which plays its episodes itself through the policy's endpoint. Its task set brings a harness that runs in
the agent's process: the library's own ones install packages before they begin."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.agents import generated_data
from rljob_trainer.driver import main
from trainer.agents.libraries import site_packages, virtual_environment
from trainer.agents.test_environment_libraries import step
from trainer.agents.test_tools import END, words, written
from trainer.driver.bench import Bench

pytestmark = pytest.mark.extra

TASKS = """
import asyncio
import verifiers.v1 as vf
from openai import AsyncOpenAI

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.reward
    async def right(self, task, trace) -> float:
        if task.answer == "1": raise ValueError("out of order")
        return float((trace.messages[-1].content or "") == task.answer)

class Sums(vf.Taskset[Sum]):
    def load(self):
        for a in range(4):
            yield Sum(Data(prompt=f"What is {a} plus 1?", answer=str(a + 1)))

class TwiceConfig(vf.HarnessConfig):
    pass

class Twice(vf.Harness[TwiceConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        messages = [{"role": "user", "content": data.prompt}]
        for said in (None, "Are you sure?"):
            messages += [{"role": "user", "content": said}] if said else []
            answer = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

__all__ = ["Sums", "Twice"]
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    path = (site_packages(virtual_environment("verifiers==0.4.0")), tmp_path, os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(part) for part in path if part))
    (tmp_path / "own_sums.py").write_text(TASKS)
    found = Bench(tmp_path)
    made: dict[str, Any] = {
        "path": f"{tmp_path}/sums.jsonl",
        "library": "verifiers",
        "environment": "own-sums",
        "size": 4,
    }
    found.spec["rewards"] = []
    found.spec["data"] |= {
        "generated": [made],
        "train": [made["path"]],
        "validation": [],
        "chatTemplate": {"texts": True},
    }
    found.spec["rollout"] |= {
        "agent": {"verifiers": {"environment": "own-sums"}, "maxTurns": 4, "maxTokens": 1000, "timeoutSeconds": 120},
        "sampling": {"maxTokens": 200},
    }
    return found


async def test_an_episode_is_played_by_the_library_and_its_ids_are_those_generated(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    found = await step(bench, "2", "3")
    assert len(found.samples) == 9 and found.metrics["agent/failed_raised"] == 3.0
    assert "environment own-sums: RuntimeError: " in caplog.text and "out of order" in caplog.text
    assert written(found, "policy") == [f"2{END}", f"3{END}"]
    assert any("Are you sure?" in said for said in written(found, "environment"))
    assert sorted(s.reward for s in found.samples) == [0.0] * 6 + [1.0] * 3, "the last answer counts, where it is 3"
    assert found.metrics["agent/tokens_left_out"] == 0.0


READS = """
import threading, time
from types import SimpleNamespace
from rljob_trainer.agents.environments.verifiers import Verifiers
from rljob_trainer.agents.episode import Nonsense

def tasks():
    for task in range(8):
        time.sleep(0.05)
        yield task

environment, found = Verifiers("own", SimpleNamespace(taskset=tasks())), []
readers = [threading.Thread(target=lambda i=i: found.append(environment._task(i))) for i in (3, 7)]
for reader in readers: reader.start()
for reader in readers: reader.join()
try:
    environment._task(-1)
except Nonsense:
    print(found)
"""


@pytest.mark.usefixtures("bench")
def test_a_read_of_the_tasks_that_was_given_up_does_not_disturb_the_next_one() -> None:
    found = subprocess.run((sys.executable, "-c", READS), capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout == "[3, 7]\n", found.stderr


@pytest.mark.parametrize("bounded", [True, False])
def test_files_of_one_seed_and_other_offsets_have_no_task_in_common(
    bench: Bench, tmp_path: Path, bounded: bool
) -> None:
    if not bounded:
        (tmp_path / "own_sums.py").write_text(TASKS.replace("    def load", "    INFINITE = True\n\n    def load", 1))
    made = bench.spec["data"]["generated"][0] | {"size": 3, "seed": 1}
    held_out = made | {"path": f"{tmp_path}/held-out.jsonl", "size": 1, "offset": 3}
    bench.spec["data"]["generated"] = [made, held_out]
    generated_data.generate(DataSpec.model_validate(bench.spec["data"]))
    lines = [line for one in (made, held_out) for line in Path(one["path"]).read_text().splitlines()]
    assert sorted(json.loads(line)["task"] for line in lines) == [0, 1, 2, 3]


def test_tasks_become_rows_with_their_numbers(bench: Bench, tmp_path: Path) -> None:
    generated_data.generate(DataSpec.model_validate(bench.spec["data"]))
    rows = [json.loads(line) for line in (tmp_path / "sums.jsonl").read_text().splitlines()]
    assert {row["task"]: row["prompt"] for row in rows} == {a: f"What is {a} plus 1?" for a in range(4)}
