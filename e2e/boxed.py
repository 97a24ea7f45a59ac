"""A job whose agent runs what the policy has written in sandboxes. Nothing is learnt: what counts is where the programs run."""

from typing import Any

from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import Object
from e2e.test_q_environments import MODEL
from rljob_api import names

AGENT = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    async with policy.sandbox("python") as sandbox:
        await sandbox.write("program.py", f"print({turn.text!r}.strip())")
        result = await sandbox.exec(["python", "program.py"], seconds=30)
        found = await sandbox.exec(["ls", "/sandbox"], seconds=30)
    metrics = {"code": result.code, "files": len(found.stdout.split())}
    return Trajectory(turn.whole, reward=float(result.stdout.strip() == prompt.answer), metrics=metrics)
"""
STEPS = 200
SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}}


def start(lab: Lab, name: str, **replicas: int) -> Job:
    """With so many sandboxes of each environment; the agent uses those of `python`."""
    lab.python(MODEL)
    lab.python(f"open('/data/boxed.py', 'w').write({AGENT!r})")
    template: Object = {"image": lab.provider.environment_image, "resources": SMALL}
    environments = [{"name": key, "replicas": count, "template": template} for key, count in replicas.items()]
    return lab.start(name, **_spec(), environments=environments)


def _spec() -> dict[str, Any]:
    agent = {"python": {"path": "/data/boxed.py"}, "maxTurns": 1, "maxTokens": 1}
    return {
        "model": {"path": "/data/environment/untrained"},
        "data": {"train": ["/data/environment/threes.parquet"], "validation": []},
        "rewards": [],
        "evaluation": None,
        "train": {"steps": STEPS, "promptsPerStep": 2, "samplesPerPrompt": 4},
        "trainer": {"nodes": 1, "parallelism": {"tensor": 1}},
        "rollout": {"replicas": 1, "sampling": {"maxTokens": 1}, "agent": agent},
    }


def uids(job: Job, environment: int = 0) -> dict[str, str]:
    """Of the sandboxes of an environment, by name."""
    pods = job.pods(names.sandbox_role(environment))
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def assert_programs_ran(lab: Lab, job: Job) -> None:
    """Each in a sandbox that nobody had used before."""
    assert set(lab.series(job.name, "agent/failed").values()) == {0.0}
    assert set(lab.series(job.name, "reward_metrics/code").values()) == {0.0}
    assert set(lab.series(job.name, "reward_metrics/files").values()) == {1.0}, "nothing of another's is there"
    assert all(0 <= reward <= 1 for reward in lab.series(job.name, "reward/mean").values())
