"""Programs that the policy has written are run and scored in sandboxes, from which nothing is reached, and of which none is used twice."""

import json

import pytest

from e2e.cluster import lifecycle
from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import wait_for
from e2e.test_k_network import REACH, python
from e2e.test_q_environments import MODEL
from rljob_api import names

pytestmark = pytest.mark.extra

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
USED, IDLE = names.sandbox_role(0), names.sandbox_role(1)
SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}}


def uids(job: Job) -> dict[str, str]:
    """Of sandboxes, by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods(USED)}


def others(lab: Lab, job: Job) -> list[tuple[str, int]]:
    """What a program could connect to: the API server, the job's server, and another sandbox."""
    service = lab.kube.run("kubectl", "get", "service", "kubernetes", "-n", "default", "-o", "json")
    rollout, neighbour = (job.pod(role, i)["status"]["podIP"] for role, i in (("rollout", 0), (IDLE, 1)))
    api = json.loads(service)["spec"]
    return [(api["clusterIP"], api["ports"][0]["port"]), (rollout, names.ROLLOUT_PORT), (neighbour, names.ROLLOUT_PORT)]


def reached(lab: Lab, job: Job) -> list[object]:
    """Of these, from a sandbox that nobody claims, so that it stays."""
    program = REACH.replace("{targets}", json.dumps(others(lab, job)))
    found = python(lab.kube, names.pod(job.name, IDLE, 0), program)
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def job(empty_lab: Lab) -> Job:
    if empty_lab.provider.name != "local" or not empty_lab.provider.environment_image:
        pytest.skip("the policy engine is started on nodes of the local cluster, and RLJOB_ENVIRONMENT_IMAGE is needed")
    empty_lab.python(MODEL)
    empty_lab.python(f"open('/data/boxed.py', 'w').write({AGENT!r})")
    template = {"image": empty_lab.provider.environment_image, "resources": SMALL}
    return empty_lab.start(
        "boxed",
        model={"path": "/data/environment/untrained"},
        data={"train": ["/data/environment/threes.parquet"], "validation": []},
        rewards=[],
        evaluation=None,
        train={"steps": STEPS, "promptsPerStep": 2, "samplesPerPrompt": 4},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}},
        rollout={
            "replicas": 1,
            "sampling": {"maxTokens": 1},
            "agent": {"python": {"path": "/data/boxed.py"}, "maxTurns": 1, "maxTokens": 1},
        },
        environments=[
            {"name": "python", "replicas": 4, "template": template},
            {"name": "idle", "replicas": 2, "template": template},
        ],
    )


def test_programs_are_scored_and_every_trajectory_has_a_sandbox_of_its_own(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=900)
    before = uids(job)
    step = job.status().progress.step
    job.wait_for_step(step + 3, timeout=600)
    after = uids(job)
    assert len(before) == 4 and not {*before.values()} & {*after.values()}, "24 trajectories have used all of them"
    assert set(empty_lab.series(job.name, "agent/failed").values()) == {0.0}
    assert set(empty_lab.series(job.name, "reward_metrics/code").values()) == {0.0}
    assert set(empty_lab.series(job.name, "reward_metrics/files").values()) == {1.0}, "nothing of another's is there"
    assert all(0 <= reward <= 1 for reward in empty_lab.series(job.name, "reward/mean").values())
    pod = job.pod(USED, 0)["spec"]
    mounted = [m["mountPath"] for c in (*pod["containers"], *pod["initContainers"]) for m in c["volumeMounts"]]
    assert "/var/run/secrets/kubernetes.io/serviceaccount" not in mounted


def test_a_program_reaches_neither_the_api_server_nor_another_pod_and_the_job_goes_on(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=900)
    assert len(reached(empty_lab, job)) == 3, "without an engine nothing keeps it in"
    with lifecycle.policies_enforced():
        wait_for("everything to be out of reach", lambda: reached(empty_lab, job) == [], 180)
        step = job.status().progress.step
        job.wait_for_step(step + 2, timeout=600)
    status = job.status()
    assert status.attempt is not None and (status.attempt.number, status.restarts.total) == (1, 0)
    job.delete()
