"""`try`: the pod that it runs in, what it gets, and what is refused before a pod is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from cli.conftest import Rljob
from cli.fake_api import FakeApi
from kubectl_rljob import pod_access

HEAD = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "mine"}}
VOLUME = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
PYTHON = '#!/bin/sh\necho "$@"\ncat "$4"\nexit 3\n'
"""In place of the image's: says what it was given, then the manifest."""


@pytest.fixture(autouse=True)
def image(tmp_path: Path, kubectl: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_access, "POLL", 0.01)
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)


def written(tmp_path: Path, **changes: Any) -> str:
    spec = raw_spec(**{"volumes": [VOLUME]} | changes)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(HEAD | {"spec": spec}))
    return str(tmp_path / "job.yaml")


def test_a_job_that_is_not_created_is_tried_in_a_pod_with_its_volumes(
    api: FakeApi, rljob: Rljob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        api, "_created", lambda *_: made.extend(api.created.values()) or {"status": {"phase": "Running"}}
    )
    screen = rljob(
        "try", "-f", written(tmp_path), "--set", "train.steps=3", "--response", "say {answer}", "--rows", "1"
    )
    command, manifest = screen.out.split("\n", 1)
    assert command == "-m rljob_trainer try /dev/stdin --rows 1 --color never --response=say {answer}"
    tried = json.loads(manifest)
    assert (tried["metadata"]["name"], tried["spec"]["train"]["steps"]) == ("mine", 3)
    pod = made[0]
    assert pod["metadata"]["ownerReferences"] == [] and pod["metadata"]["name"].startswith("mine-")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "trainer:test"
    assert {"name": "data", "mountPath": "/data", "readOnly": False} in container["volumeMounts"]
    assert screen.code == 3, "its exit code is returned"


def test_rewards_find_the_environment_of_the_jobs_trainers(
    api: FakeApi, rljob: Rljob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        api, "_created", lambda *_: made.extend(api.created.values()) or {"status": {"phase": "Running"}}
    )
    key = {"name": "JUDGE_KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "key"}}}
    env = [key, {"name": "JUDGE", "value": "job"}, {"name": "HOME", "value": "/data/home"}]
    template = {"env": [{"name": "JUDGE", "value": "trainer"}]}
    sources = [{"secretRef": {"name": "logins"}}]
    rljob("try", "-f", written(tmp_path, env=env, envFrom=sources, trainer={"template": template}))
    (container,) = made[0]["spec"]["containers"]
    assert container["envFrom"] == sources
    assert container["env"] == [
        {"name": "HOME", "value": "/data/home"},
        {"name": "USER", "value": "rljob"},
        key,
        {"name": "JUDGE", "value": "trainer"},
    ]


def test_why_the_clusters_default_image_is_missing_is_said(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    imageless = written(tmp_path, image=None)
    screen = rljob("try", "-f", imageless)
    assert "note: without the cluster's defaults and limits, which were not read: " in screen.err
    assert "configmap rljob-job-policy in namespace rljob-system" in screen.err
    assert "no default of the cluster is known" in screen.err
    api.job_policy = {"defaults": {"image": "cluster:default"}}
    screen = rljob("try", "-f", imageless)
    assert screen.code == 3 and "note: " not in screen.err


def test_the_pod_is_deleted(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    rljob("try", "-f", written(tmp_path))
    assert [method for method, path, _ in api.requests if "/pods/mine-" in path][-1] == "DELETE" and api.created == {}


def test_a_broken_rule_and_a_missing_image_are_said_before_a_pod_is_made(
    api: FakeApi, rljob: Rljob, tmp_path: Path
) -> None:
    screen = rljob("try", "-f", written(tmp_path, train={"steps": 0}))
    assert screen.code == 1 and "error: mine is not valid:\nspec.train.steps = 0" in screen.err
    screen = rljob("try", "-f", written(tmp_path, image=None))
    assert screen.code == 1 and "image" in screen.err and api.created == {}
