"""A cluster that somebody else runs, as the demo and these tests take it: the local one, with images from a registry of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import providers, stack
from e2e.cluster import steps
from e2e.conftest import Lab
from e2e.job import Job, example
from e2e.providers import Provider
from rljob_api import names

pytestmark = pytest.mark.extra

REGISTRY = "localhost:5000"


def pulled_name(image: str) -> str:
    return f"{REGISTRY}/{image}"


@pytest.fixture
def registry(lab: Lab, tmp_path: Path) -> Iterator[None]:
    """On the loopback of each node, where containerd speaks plain HTTP; with the images that were built here."""
    if lab.provider.name != "local":
        pytest.skip("the registry runs on nodes of the local cluster")
    images = []
    for image in (lab.provider.operator_image, lab.provider.trainer_image):
        layout = tmp_path / image.replace("/", "-").replace(":", "-")  # skopeo takes what follows a colon for the tag
        steps.run_step("exporting an image", steps.SCRIPTS / "images", "export", image, str(layout))
        images.append(f"{image}={layout}")
    command = [sys.executable, "-m", "e2e.registry", "5000", str(steps.CACHE / "images" / "blobs"), *images]
    running = []
    for node in ("node1", "node2"):
        machine = (steps.STATE / f"{node}.machine").read_text().strip()
        running.append(subprocess.Popen(["nsenter", "-t", machine, "--net", *command], cwd=steps.REPOSITORY))
    yield
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def existing(lab: Lab, registry: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """As its user names it; afterwards the operator runs from the local image again."""
    monkeypatch.setenv("PATH", f"{steps.BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RLJOB_KUBECONFIG", str(lab.provider.kubeconfig))
    monkeypatch.setenv("RLJOB_STORAGE_CLASS", lab.provider.storage_class)
    monkeypatch.setenv("RLJOB_OPERATOR_IMAGE", pulled_name(lab.provider.operator_image))
    monkeypatch.setenv("RLJOB_TRAINER_IMAGE", pulled_name(lab.provider.trainer_image))
    yield providers.choose()
    stack.install_operator(lab.provider)


def test_operator_and_job_run_from_images_that_the_cluster_pulls(lab: Lab, existing: Provider) -> None:
    assert stack.up().name == "existing"
    pods = lab.system.list("pod", "app.kubernetes.io/name=rljob-operator")
    operator = [p for p in pods if "deletionTimestamp" not in p["metadata"]]  # the one before may still be ending
    assert operator
    assert {c["image"] for p in operator for c in p["spec"]["containers"]} == {existing.operator_image}
    lab.kube.apply(
        example("pulled", existing.trainer_image, checkpoint={"path": "/data/runs/pulled"}, train={"steps": 3})
    )
    job = Job(lab.kube, "pulled")
    job.wait_for_state("Running")
    assert {c["image"] for p in job.pods() for c in p["spec"]["containers"]} == {existing.trainer_image}
    assert job.pod(names.ROLE_TRAINER, 0)["status"]["containerStatuses"][0]["imageID"].startswith(REGISTRY)
    job.wait_for_state("Succeeded", timeout=600)
    job.delete()
