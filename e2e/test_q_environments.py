"""The environment of images/environment in its pod: programs of the policy's have limits, and a job learns from the rewards that it gives.

The model is tiny and untrained: what is learnt is to write one digit, which takes no preparation.
"""

import json

import pytest
import yaml

from e2e.conftest import Lab
from e2e.job import EXAMPLES, attempts
from e2e.kube import CommandFailed, wait_for

pytestmark = pytest.mark.extra

SERVICE = "python-environment"
STEPS = 8
MODEL = """
import sys
from pathlib import Path
sys.path.insert(0, "/prepare")
import prepare, pyarrow, pyarrow.parquet
root = Path("/data/environment")
prepare.write_start(root, "qwen2", 0)
rows = {"prompt": [f"{a}+{b}=" for a in range(10, 50) for b in range(10, 50)]}
rows["answer"] = ["3"] * len(rows["prompt"])
pyarrow.parquet.write_table(pyarrow.table(rows), root / "threes.parquet")
"""
PLAY = """
import json, urllib.request

def ask(route, **body):
    request = urllib.request.Request("http://SERVICE:8080/" + route, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=60))

def printed(turn, program):
    answer = ask("step", session="limits", turn=turn, text="```python\\n" + program + "\\n```", truncated=False)
    return answer["messages"][0]["content"]

ask("reset", session="limits", prompt="", row={"answer": "3"})
print(json.dumps([printed(turn, program) for turn, program in enumerate(PROGRAMS)]))
ask("close", session="limits")
""".replace("SERVICE", SERVICE)
PROGRAMS = {
    "print(1 + 2)": "3\n",
    "while True: pass": "ended by SIGKILL: the limit is 5 s",
    "bytearray(2**30)": "MemoryError",
    "import os; os.fork()": "Resource temporarily unavailable",
    "open('/tmp/kept', 'w')": "Read-only file system",
    "import os; os.kill(1, 9); os.kill(1, 15); print('alive')": "alive",
    "print(open('/var/run/secrets/kubernetes.io/serviceaccount/token').read())": "No such file",
    "print('still here')": "still here\n",
}
"""And what the policy reads of them."""


@pytest.fixture(scope="module")
def service(empty_lab: Lab) -> str:
    """As examples/environment says, with the image of this tree. Its URL."""
    if not empty_lab.provider.environment_image:
        pytest.skip("RLJOB_ENVIRONMENT_IMAGE is not set")
    objects = list(yaml.safe_load_all((EXAMPLES / "environment/environment.yaml").read_text()))
    objects[0]["spec"]["template"]["spec"]["containers"][0]["image"] = empty_lab.provider.environment_image
    empty_lab.kube.apply(*objects)
    empty_lab.kube.kubectl("rollout", "status", f"deployment/{SERVICE}", "--timeout=300s", timeout=330)

    def answers() -> bool:
        """A pod may be ready before the nodes know that its Service leads to it."""
        try:
            empty_lab.python(f"import socket; socket.create_connection(({SERVICE!r}, 8080), 5)")
        except CommandFailed:
            return False
        return True

    wait_for("the Service leads to its pod", answers, 60)
    return f"http://{SERVICE}:8080"


@pytest.mark.usefixtures("service")
def test_programs_of_the_policys_have_limits_and_cost_the_pod_nothing(empty_lab: Lab) -> None:
    answers = json.loads(empty_lab.python(PLAY.replace("PROGRAMS", repr(list(PROGRAMS)))))
    for (program, said), answer in zip(PROGRAMS.items(), answers, strict=True):
        assert said in answer, program
    (pod,) = empty_lab.kube.list("pod", f"app={SERVICE}")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_job_learns_from_the_rewards_of_its_environment(empty_lab: Lab, service: str) -> None:
    empty_lab.python(MODEL)
    job = empty_lab.start(
        "environment",
        model={"path": "/data/environment/untrained"},
        data={"train": ["/data/environment/threes.parquet"], "validation": []},
        rewards=[],
        evaluation=None,
        train={"steps": STEPS, "promptsPerStep": 32, "optimizer": {"learningRate": 1e-3}},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}},
        rollout={
            "replicas": 1,
            "sampling": {"maxTokens": 1},
            "agent": {"environment": {"url": service}, "maxTurns": 2, "maxTokens": 2},
        },
    )
    status = job.wait_for_state("Succeeded", timeout=1200)
    assert attempts(status) == (1, 0)
    rewards = list(empty_lab.series(job.name, "reward/mean").values())
    assert len(rewards) == STEPS and rewards[-1] > rewards[0] + 0.3
    assert set(empty_lab.series(job.name, "agent/turns").values()) == {1.0}
    assert set(empty_lab.series(job.name, "agent/failed").values()) == {0.0}
