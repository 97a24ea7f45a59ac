"""`try`: the pod that it runs in, what it gets, and what is refused before a pod is made."""

import json
import sys
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


@pytest.mark.parametrize(
    "unmade", [{"image": None}, {"volumes": 3}, {"podSecurity": {"runAsUser": "me"}}, {"env": [{"nam": 1}]}]
)
def test_no_pod_is_made_of_what_cannot_be_read(
    api: FakeApi, rljob: Rljob, tmp_path: Path, unmade: dict[str, Any]
) -> None:
    screen = rljob("try", "-f", written(tmp_path, train={"stepz": 1}, **unmade))
    (field,) = unmade
    assert screen.code == 1 and f"\nspec.{field}" in screen.err and "spec.train.stepz" in screen.err
    assert "POST" not in {method for method, *_ in api.requests}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"train": {"steps": 0}}, "spec.train.steps = 0"),
        ({"train": {"stepz": 1}}, "spec.train.stepz = 1"),
        ({"model": {"pth": "/data/model"}}, "spec.model.pth = "),
        ({"trainer": {"nodes": 3, "parallelism": {"tensor": 2}}}, "spec.trainer.parallelism = "),
    ],
)
def test_missing_files_are_said_with_broken_rules_and_nothing_twice(
    api: FakeApi, rljob: Rljob, tmp_path: Path, changes: dict[str, Any], broken: str
) -> None:
    """By the trainer's own code, in a pod that has none of the files."""
    here = f"#!/bin/sh\ncat > {tmp_path}/fed.json\nshift 4\n"
    here += f'{sys.executable} -m rljob_trainer try {tmp_path}/fed.json "$@"\ncode=$?\n'
    here += 'echo "command terminated with exit code $code" >&2\nexit $code\n'
    (tmp_path / "bin" / "python").write_text(here)
    api.job_policy = {"defaults": {"image": "cluster:default"}}
    screen = rljob("try", "-f", written(tmp_path, **changes))
    said = screen.err.splitlines()
    assert screen.code == 1 and len([line for line in said if line.startswith(broken)]) == 1
    missing = [line.split(" = ")[0] for line in said if ": there is no /data/" in line]
    assert missing == ["spec.model.path", "spec.data.train[0]"]
    assert said[0] == "error: mine is not valid:" and len(said) == 4


def test_a_pod_that_does_not_start_hides_no_broken_rule(
    api: FakeApi, rljob: Rljob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_created", lambda *_: {"status": {"phase": "Failed", "reason": "Evicted"}})
    screen = rljob("try", "-f", written(tmp_path, train={"stepz": 1}))
    assert screen.code == 1 and "spec.train.stepz = 1" in screen.err
    assert "note: its files were not looked for: " in screen.err and "Evicted" in screen.err
