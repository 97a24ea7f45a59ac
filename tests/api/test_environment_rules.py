"""Rules of spec.environments."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.policy import JobPolicy
from rljob_api.rules import validate

AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
ROLLOUT = {"agent": AGENT, "sampling": {"maxTokens": 8}}


def violations(*environments: dict[str, Any], **changes: Any) -> list[str]:
    spec = raw_spec(**{"rollout": ROLLOUT, "environments": list(environments), **changes})
    return [str(v) for v in validate(spec, "demo").violations]


def test_an_environment_needs_a_name_only_and_may_have_an_image_of_its_own() -> None:
    own = {"name": "rust", "replicas": 256, "runtimeClassName": "gvisor", "claimSeconds": 60}
    assert violations({"name": "python"}, own | {"template": {"image": "rust:1", "nodeSelector": {"a": "b"}}}) == []


@pytest.mark.parametrize(
    ("environments", "said"),
    [
        ([{"name": "a"}, {"name": "b"}, {"name": "a"}], "spec.environments[2].name = a: stands twice"),
        ([{}], "spec.environments[0].name"),
        ([{"name": "A b"}], "spec.environments[0].name"),
        ([{"name": "a" * 64}], "spec.environments[0].name"),
        ([{"name": "a", "replicas": 257}], "spec.environments[0].replicas = 257"),
        ([{"name": "a", "replicas": 0}], "spec.environments[0].replicas = 0"),
        ([{"name": "a", "claimSeconds": 86401}], "spec.environments[0].claimSeconds = 86401"),
        ([{"name": "a", "runtimeClassName": "A b"}], "spec.environments[0].runtimeClassName"),
        ([{"name": str(i)} for i in range(9)], "spec.environments"),
        (
            [{"name": "a", "template": {"labels": {"rljob.dev/sandbox": "false"}}}],
            "spec.environments[0].template.labels.rljob.dev/sandbox",
        ),
        (
            [{"name": "a", "template": {"env": [{"name": "RLJOB_ROLLOUT_TOKEN", "value": "x"}]}}],
            "spec.environments[0].template.env[0].name",
        ),
        (
            [{"name": "a", "template": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}}],
            "spec.environments[0].template.resources.requests.cpu",
        ),
    ],
)
def test_a_mistake_is_named_by_its_field(environments: list[dict[str, Any]], said: str) -> None:
    (found,) = violations(*environments)
    assert found.startswith(said)


def test_no_pool_has_the_role_of_an_environments_pods() -> None:
    (found,) = violations(pools=[{"name": "sandbox0", "model": "/m"}], rewards=[{"vllm": {"pool": "sandbox0"}}])
    assert found.startswith("spec.pools[0].name = sandbox0: names another role of the job")


def test_they_count_among_the_jobs_pods() -> None:
    spec = raw_spec(rollout=ROLLOUT, environments=[{"name": "python", "replicas": 5}])
    (violation,) = JobPolicy.model_validate({"maxPods": 6}).admit(spec, "demo").result.violations
    assert str(violation).startswith(
        "spec.environments[0].replicas = 5: with spec.trainer 1, spec.rollout 1 that makes"
    )


def test_what_the_spec_leaves_open_is_requested_and_limited_as_usual() -> None:
    resources = {"requests": {"memory": "4Gi", "cpu": "500m"}, "limits": {"cpu": "2", "example.com/fpga": "1"}}
    environments = [{"name": "a"}, {"name": "b", "template": {"resources": resources}}]
    spec = validate(make_spec(rollout=ROLLOUT, environments=environments), "demo").spec
    assert spec
    assert spec.container_resources("sandbox0") == {
        "requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "256Mi"},
        "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"},
    }
    assert spec.container_resources("sandbox1") == {
        "requests": {"memory": "4Gi", "cpu": "500m", "ephemeral-storage": "256Mi"},
        "limits": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "2Gi", "example.com/fpga": "1"},
    }
