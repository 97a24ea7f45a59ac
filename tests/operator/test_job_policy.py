"""As whom pods run: what the job says, the administrator's defaults, and the limits of what a job may say."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.spec.pod_security import PodSecurity
from rljob_api.validation import validate
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.job_policy import JobPolicy
from rljob_operator.render.template import pod_template
from simulator.makers import META

OURS = {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}
ALWAYS = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
LIMITS = JobPolicy.model_validate(
    {
        "limits": {
            "userIds": {"minimum": 1000, "maximum": 1999},
            "groupIds": {"minimum": 100, "maximum": 200},
            "runtimeClassNames": ["nvidia", "gvisor"],
        }
    }
)


def pods(policy: JobPolicy, **changes: Any) -> list[dict[str, Any]]:
    """Specs of trainer and rollout pods."""
    spec = policy.applied(validate(raw_spec(**changes), "demo")).accepted
    assert spec
    return [pod_template(META, spec, role)["spec"] for role in ("trainer", "rollout")]


def violations(policy: JobPolicy, **changes: Any) -> list[str]:
    return list(map(str, policy.applied(validate(raw_spec(**changes), "demo")).violations))


def test_pods_run_as_the_images_user_by_default() -> None:
    for pod in pods(JobPolicy()):
        assert pod["securityContext"] == OURS | ALWAYS
        assert "runtimeClassName" not in pod


def test_a_job_chooses_user_groups_and_runtime_of_all_its_pods() -> None:
    chosen = {"runAsUser": 1001, "fsGroup": 0, "supplementalGroups": [5000, 5001], "fsGroupChangePolicy": "Always"}
    for pod in pods(JobPolicy(), podSecurity=chosen, runtimeClassName="nvidia"):
        assert pod["securityContext"] == OURS | ALWAYS | chosen
        assert pod["runtimeClassName"] == "nvidia"


def test_the_administrator_sets_what_a_job_leaves_open() -> None:
    policy = JobPolicy.model_validate({"podSecurity": OURS | {"runAsUser": 1500}, "runtimeClassName": "nvidia"})
    (pod, _) = pods(policy, podSecurity={"runAsGroup": 150})
    assert pod["securityContext"] == OURS | ALWAYS | {"runAsUser": 1500, "runAsGroup": 150}
    assert pod["runtimeClassName"] == "nvidia"
    (pod, _) = pods(policy, runtimeClassName="gvisor")
    assert pod["runtimeClassName"] == "gvisor"


def test_what_neither_sets_is_left_to_the_platform() -> None:
    policy = JobPolicy.model_validate({"podSecurity": {"supplementalGroups": []}})
    assert [pod["securityContext"] for pod in pods(policy)] == [ALWAYS, ALWAYS]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"podSecurity": {"runAsUser": 999}},
            "spec.podSecurity.runAsUser = 999: the administrator allows 1000 to 1999; choose one of them, "
            "or ask the administrator of rljob",
        ),
        (
            {"podSecurity": {"fsGroup": 201}},
            "spec.podSecurity.fsGroup = 201: the administrator allows 100 to 200; choose one of them, "
            "or ask the administrator of rljob",
        ),
        (
            {"podSecurity": {"supplementalGroups": [100, 99]}},
            "spec.podSecurity.supplementalGroups[1] = 99: the administrator allows 100 to 200; choose one of them, "
            "or ask the administrator of rljob",
        ),
        (
            {"runtimeClassName": "runc"},
            "spec.runtimeClassName = runc: the administrator allows nvidia, gvisor; choose one of them, "
            "or ask the administrator of rljob",
        ),
    ],
)
def test_what_is_beyond_the_limits_is_refused(changes: dict[str, Any], message: str) -> None:
    assert violations(LIMITS, **changes) == [message]
    assert violations(JobPolicy(), **changes) == []


def test_the_defaults_are_not_held_against_the_limits() -> None:
    assert violations(LIMITS) == []
    assert violations(LIMITS, podSecurity={"runAsUser": 1000, "runAsGroup": 200}, runtimeClassName="gvisor") == []


def test_a_limit_is_found_with_all_other_mistakes() -> None:
    found = violations(LIMITS, podSecurity={"runAsUser": 0, "fsGroup": 1})
    assert [line.split(" = ")[0] for line in found] == [
        "spec.podSecurity.runAsUser",
        "spec.podSecurity.runAsUser",
        "spec.podSecurity.fsGroup",
    ]


def test_reconcile_and_scheduling_see_the_defaults_and_the_limits() -> None:
    """Both read the cache. A job that the limits refuse must not stand in the way of jobs behind it."""
    cache = ClusterCache(lambda: 0.0, LIMITS)
    for name, user in (("right", 1000), ("wrong", 1)):
        meta = {"name": name, "namespace": "research", "uid": name, "resourceVersion": "1"}
        cache.put({"kind": "RLJob", "metadata": meta, "spec": raw_spec(podSecurity={"runAsUser": user})})
    right, wrong = (cache.jobs.get(("research", name)) for name in ("right", "wrong"))
    assert right and wrong
    accepted = right.value.validation.result.accepted
    assert accepted and accepted.pod_security == PodSecurity.model_validate(
        OURS | {"runAsUser": 1000, "supplementalGroups": []}
    )
    assert wrong.value.validation.result.accepted is None
