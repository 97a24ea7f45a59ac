"""One cluster, one namespace, one prepared volume for all tests; each test has jobs and run directories of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import stack
from e2e.job import Job, example, series
from e2e.kube import Kube, Object
from e2e.prepare import WORKBENCH, read_file, run_preparation, volume, workbench
from e2e.providers import Provider
from rljob_api import names

NAMESPACE = "rljob-e2e"
BASELINE = "baseline"
UNTRAINED = """
import sys
from pathlib import Path
sys.path.insert(0, "/prepare")
import prepare
prepare.write_start(Path(sys.argv[1]), "qwen2", 0)
"""


@dataclass(frozen=True)
class Lab:
    """Where the tests work."""

    kube: Kube
    provider: Provider

    @property
    def system(self) -> Kube:
        """The operator's namespace."""
        return stack.kube(self.provider, stack.OPERATOR_NAMESPACE)

    def start(self, name: str, of: str = "arithmetic", **changes: object) -> Job:
        """Apply an example under another name, with a run directory of its own and what the test changes."""
        merged = {"checkpoint": {"path": f"/data/runs/{name}"}} | changes
        self.kube.apply(example(name, self.provider.trainer_image, of, **merged))
        return Job(self.kube, name)

    def start_untrained(self, name: str, **changes: object) -> Job:
        """The example with a model of random numbers: where nothing is to be learnt, nothing has to be prepared for long."""
        start = f"/data/starts/{name}"
        self.kube.execute(WORKBENCH, "python", "-c", UNTRAINED, start, timeout=300)
        data = {"train": [f"{start}/data/train.parquet"], "validation": []}
        own: Object = {"model": {"path": f"{start}/untrained"}, "data": data, "evaluation": None}
        return self.start(name, **(own | changes))

    def start_replay(self, name: str, **changes: object) -> Job:
        """Train on the batches that the baseline recorded: no rollouts, and losses that can be compared bit by bit."""
        replay: Object = {
            "train": {"batches": {"replay": f"/data/runs/{BASELINE}/batches"}},
            "rollout": {"replicas": 0},
            "evaluation": {"everySteps": 0},
            "checkpoint": {"path": f"/data/runs/{name}", "everySteps": 3},
        }
        return self.start(name, **(replay | changes))

    def series(self, name: str, metric: str) -> dict[int, float]:
        """A metric of a job's run, by step."""
        return series(read_file(self.kube, f"/data/runs/{name}/metrics.jsonl"), metric)

    def losses(self, name: str) -> dict[int, float]:
        return self.series(name, "train/loss")

    def python(self, program: str, timeout: float = 120) -> str:
        """Run a program with the trainer's code on the volume."""
        return self.kube.execute(WORKBENCH, "python", "-c", program, timeout=timeout)

    def report(self, pod: str) -> Object:
        """What a launcher last said; empty: nothing yet."""
        return self.kube.get("configmap", names.report(pod)).get("data", {})


@pytest.fixture(scope="session")
def empty_lab() -> Iterator[Lab]:
    """A namespace of the cluster whose volume is empty."""
    provider = stack.up()
    kube = stack.kube(provider, NAMESPACE)
    kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", timeout=200)
    kube.kubectl("create", "namespace", NAMESPACE)
    enforce(kube, "baseline")
    volume(kube, provider)
    workbench(kube, provider)
    yield Lab(kube, provider)
    kube.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="session")
def lab(empty_lab: Lab) -> Lab:
    """With the example's model and data."""
    run_preparation(empty_lab.kube, empty_lab.provider, "arithmetic")
    return empty_lab


@pytest.fixture(scope="session")
def baseline(lab: Lab) -> Job:
    """The example, undisturbed, under the restricted standard, with its batches recorded; other tests replay them."""
    enforce(lab.kube, "restricted")
    job = lab.start(BASELINE, train={"batches": {"record": True}})
    job.wait_for_state("Succeeded", timeout=900)
    enforce(lab.kube, "baseline")
    return job


def enforce(kube: Kube, standard: str) -> None:
    """Pods of the tests' namespace are created under this standard from now on."""
    kube.kubectl("label", "namespace", NAMESPACE, "--overwrite", f"pod-security.kubernetes.io/enforce={standard}")
