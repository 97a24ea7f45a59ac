"""What the cluster's administrator adds to a manifest, on the page of plan."""

import json
from pathlib import Path
from typing import Any

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_spec
from cli.test_plan import write

POLICY: dict[str, Any] = {
    "defaults": {
        "image": "registry.example/trainer:1",
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        "template": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    },
    "limits": {"userIds": {"minimum": 1000}},
}
PAGE = """\

DEFAULT OF THE CLUSTER                 VALUE
spec.image                             "registry.example/trainer:1"
spec.env[0]                            {"name": "HF_HUB_OFFLINE", "value": "1"}
spec.trainer.template.tolerations[0]   {"key": "gpu", "operator": "Exists"}
spec.rollout.template.tolerations[0]   {"key": "gpu", "operator": "Exists"}

ROLE """


def without_image(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in make_spec(**changes).items() if key != "image"}


def test_the_page_says_what_the_cluster_adds(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.job_policy = POLICY
    screen = rljob("plan", "-f", write(tmp_path, without_image()))
    assert PAGE in screen.out
    (found,) = json.loads(rljob("plan", "-f", write(tmp_path, without_image()), "-o", "json").out)
    assert found["defaults"]["spec.image"] == "registry.example/trainer:1"
    assert found["violations"] == []


def test_the_limits_of_the_cluster_are_checked(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.job_policy = POLICY
    screen = rljob("plan", "-f", write(tmp_path, make_spec(podSecurity={"runAsUser": 999})))
    assert screen.code == 1
    assert "spec.podSecurity.runAsUser = 999\n    the administrator allows 1000 to 2147483647\n" in screen.out


def test_a_rule_that_a_default_breaks_says_whose_it_is(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.job_policy = {"defaults": {"env": [{"name": "RANK", "value": "0"}]}}
    screen = rljob("plan", "-f", write(tmp_path, make_spec()))
    assert screen.code == 1
    assert "spec.env[0].name = RANK" in screen.out
    assert "the image (a default of the cluster: jobs.defaults)\n" in screen.out


def test_defaults_that_cannot_be_read_leave_the_manifest(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    why = "not read: configmap rljob-job-policy in namespace rljob-system: not found"
    screen = rljob("plan", "-f", write(tmp_path, without_image()))
    assert f"\nDefaults of the cluster: {why}\n" in screen.out
    assert "spec.image = unset\n    is not set, and no default of the cluster is known\n" in screen.out
    api.job_policy = POLICY
    elsewhere = rljob("plan", "-f", write(tmp_path, make_spec()), "--operator-namespace", "platform")
    assert "configmap rljob-job-policy in namespace platform: not found" in elsewhere.out
