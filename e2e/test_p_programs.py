"""Agents that know nothing of RLJob, in pods of their own: one written with the client library `openai`, whose programs run in sandboxes, and an
environment of the library `verifiers`. Both learn while workers, sandboxes and the only server are killed, from the ids that they were given.

The model is tiny and untrained: what is learnt is to write the digit 3, twice.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest

from e2e.boxed import SMALL
from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import Object, wait_for
from e2e.prepare import WORKBENCH
from rljob_api import names
from trainer.agents.libraries import site_packages, virtual_environment

pytestmark = pytest.mark.extra

ROOT, STEPS, PROMPTS, SAMPLES = "/data/programs", 40, 8, 4
"""Two steps for each loss, and for those at a moment when nothing was at work."""
THINKING = 1.0
"""Seconds between the turns of a trajectory, so that workers are at work nearly all the time however fast the machine is."""
FOLLOW_UP = "+1="
"""What either agent says behind the policy's first turn."""
PREPARE = f"""
import sys
from pathlib import Path
sys.path.insert(0, "/prepare")
import prepare, pyarrow, pyarrow.parquet
root = Path("{ROOT}")
prepare.write_start(root, "qwen2", 0)
(root / "template.jinja").write_text("{{% for message in messages %}}{{{{ message['content'] }}}}{{% endfor %}}")
number = list(range({STEPS * PROMPTS}))
rows = {{"prompt": [f"{{10 + i // 10}}+{{i % 10}}=" for i in number], "task": number, "answer": ["3"] * len(number)}}
pyarrow.parquet.write_table(pyarrow.table(rows), root / "rows.parquet")
"""
AGENT = f"""
import asyncio
from openai import AsyncOpenAI
from rljob_trainer.agents import SandboxError

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="any", max_retries=0, timeout=600)

async def talk(client, problem):
    messages, said = [{{"role": "user", "content": problem}}], []
    for text in ("{FOLLOW_UP}", ""):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        await asyncio.sleep({THINKING})
        said.append(answer.choices[0].message.content or "")
        messages += [answer.choices[0].message, {{"role": "user", "content": text}}]
    return "".join(said)

async def run(policy, program, again=0):
    try:
        async with policy.sandbox("python") as sandbox:
            return float((await sandbox.exec(["python", "-c", program], seconds=60)).stdout), again
    except SandboxError:
        return await run(policy, program, again + 1)

async def rollout(prompt, policy, row):
    said = await talk(CLIENT.with_options(base_url=policy.base_url), row["prompt"])
    again, reward = 0, said.count(prompt.answer) / 2
    if row["task"] % {PROMPTS} == 0:
        program = f"import time; time.sleep(3); print({{said!r}}.count({{prompt.answer!r}}) / 2)"
        reward, again = await run(policy, program)
    return await policy.trajectory(reward, {{"again": again}})
"""
TASKS = f"""
import asyncio
import verifiers.v1 as vf
from openai import AsyncOpenAI

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.reward
    async def right(self, task, trace) -> float:
        said = [message.content or "" for message in trace.messages if message.role == "assistant"]
        return "".join(said).count(task.answer) / 2

class Sums(vf.Taskset[Sum]):
    def load(self):
        for i in range({STEPS * PROMPTS}):
            yield Sum(Data(prompt=f"{{10 + i // 10}}+{{i % 10}}=", answer="3"))

class TwiceConfig(vf.HarnessConfig):
    pass

class Twice(vf.Harness[TwiceConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client, messages = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=600), []
        for text in (data.prompt, "{FOLLOW_UP}"):
            messages.append({{"role": "user", "content": text}})
            answer = await client.chat.completions.create(model=ctx.model, messages=messages)
            await asyncio.sleep({THINKING})
            messages.append({{"role": "assistant", "content": answer.choices[0].message.content or ""}})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

__all__ = ["Sums", "Twice"]
"""
WORKERS: Object = {
    "replicas": 2,
    "processes": 1,
    "template": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
}
TRAINED = """
import json, pathlib, sys
sys.path.insert(0, "/prepare")
import prepare
from rljob_trainer.driver.buffer.batch_files import read
decode = prepare.make_tokenizer().decode
for path in sorted(pathlib.Path("/data/runs/JOB/batches").glob("step_*.safetensors")):
    batch = read(path)
    samples = [batch.samples[i] for i in range(len(batch.columns))]
    print(json.dumps([batch.step, [[
        [s.prompt_index, s.sample],
        [[part.source, decode(part.tokens), len(part.tokens)] for part in s.segments],
        sorted({part.policy_step for part in s.segments if part.source == "policy"}),
    ] for s in samples]]))
"""


def start(lab: Lab, name: str, agent: Object, **changes: Any) -> Job:
    common = {"maxTurns": 2, "maxTokens": 2 + len(FOLLOW_UP), "timeoutSeconds": 120, "workers": WORKERS}
    return lab.start(
        name,
        model={"path": f"{ROOT}/untrained"},
        data={
            "train": [f"{ROOT}/rows.parquet"],
            "validation": [],
            "shuffle": False,
            "chatTemplate": {"path": f"{ROOT}/template.jinja", "texts": True},
        },
        rewards=[],
        evaluation=None,
        train={
            "steps": STEPS,
            "promptsPerStep": PROMPTS,
            "samplesPerPrompt": SAMPLES,
            "optimizer": {"learningRate": 1e-3},
            "batches": {"record": True},
        },
        trainer={"nodes": 1, "parallelism": {"tensor": 1}},
        rollout={"replicas": 1, "sampling": {"maxTokens": 1}, "agent": common | agent},
        **changes,
    )


@pytest.fixture(scope="module")
def jobs(empty_lab: Lab) -> dict[str, Job]:
    """Both at a time."""
    if not empty_lab.provider.environment_image:
        pytest.skip("RLJOB_ENVIRONMENT_IMAGE is not set")
    libraries = site_packages(virtual_environment("verifiers==0.4.0"))
    empty_lab.python(PREPARE)
    empty_lab.kube.kubectl("cp", str(libraries), f"{WORKBENCH}:{ROOT}/libraries", timeout=300)
    for file, text in (("agent.py", AGENT), ("own_sums.py", TASKS)):
        empty_lab.python(f"open('{ROOT}/{file}', 'w').write({text!r})")
    template = {"image": empty_lab.provider.environment_image, "resources": SMALL}
    boxes = [{"name": "python", "replicas": 4, "template": template}]
    own = {"verifiers": {"environment": "own-sums"}, "env": {"PYTHONPATH": f"{ROOT}/libraries:{ROOT}"}}
    client = start(empty_lab, "client", {"python": {"path": f"{ROOT}/agent.py"}}, environments=boxes)
    return {"client": client, "library": start(empty_lab, "library", own)}


def lose(lab: Lab, job: Job, role: str, metric: str) -> None:
    """Delete pods of this role without notice, until they were at work: the metric says so. Others come. Each time a second later in a step, since at
    its beginning nobody is."""
    pauses = cycle(range(6))

    def were_at_work() -> bool:
        time.sleep(next(pauses))
        selector, step = names.selector(job.name, role), job.status().progress.step
        lab.kube.kubectl("delete", "pod", "-l", selector, "--grace-period=0", "--force")
        job.wait_for_step(step + 2, timeout=900)
        return any(lab.series(job.name, metric).values())

    wait_for(f"{metric} of {job.name}", were_at_work, 1200)


def lose_server(lab: Lab, job: Job) -> None:
    lost, step = job.uid(names.ROLE_ROLLOUT, 0), job.status().progress.step
    lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_ROLLOUT, 0), "--grace-period=0", "--force")
    job.wait_for_step(step + 2, timeout=900)
    assert job.uid(names.ROLE_ROLLOUT, 0) not in ("", lost)


def test_workers_sandboxes_and_the_only_server_are_lost_at_work_and_others_come(
    empty_lab: Lab, jobs: dict[str, Job]
) -> None:
    def lose_all(job: Job, metrics: dict[str, str]) -> None:
        job.wait_for_step(1, timeout=900)
        for role, metric in metrics.items():
            lose(empty_lab, job, role, metric)
        lose_server(empty_lab, job)

    workers = {names.ROLE_WORKER: "agent/run_again"}
    with ThreadPoolExecutor() as pool:
        sandboxes = {names.sandbox_role(0): "reward_metrics/again"}
        both = pool.map(lose_all, (jobs["client"], jobs["library"]), (sandboxes | workers, workers))
    assert list(both) == [None, None]


@pytest.mark.parametrize("name", ["client", "library"])
def test_the_job_learns_in_one_attempt_from_the_ids_that_it_was_given_each_once(
    empty_lab: Lab, jobs: dict[str, Job], name: str
) -> None:
    """Each step has the rows that come in it, each sample once, of the policy before the step."""
    job = jobs[name]
    status = job.wait_for_state("Succeeded", timeout=900)
    assert attempts(status) == (1, 0)
    rewards = list(empty_lab.series(name, "reward/mean").values())
    assert len(rewards) == STEPS and rewards[-1] > rewards[0] + 0.3
    assert not any(empty_lab.series(name, "agent/failed").values())
    assert not any(empty_lab.series(name, "agent/tokens_left_out").values())
    assert max(empty_lab.series(name, "train_rollout/log_prob_diff_mean").values()) < 1e-4, "of the ids as written"
    steps = [json.loads(line) for line in empty_lab.python(TRAINED.replace("JOB", name)).splitlines()]
    assert sorted(step for step, _ in steps) == [*range(1, STEPS + 1)]
    for step, samples in steps:
        rows = range((step - 1) * PROMPTS, step * PROMPTS)
        assert sorted(ids for ids, _, _ in samples) == [[row, sample] for row in rows for sample in range(SAMPLES)]
        for (row, _), parts, policies in samples:
            asked = ["prompt", f"{10 + row // 10}+{row % 10}="]
            assert [part[:2] for part in parts[::2]] == [asked, ["environment", FOLLOW_UP]]
            assert [(source, length) for source, _, length in parts[1::2]] == [("policy", 1)] * 2
            assert policies == [step - 1]
