"""As whom pods run: what the job says, the administrator's defaults, and the limits of what a job may say."""

from dataclasses import replace
from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.policy import JobPolicy
from rljob_api.protocol import Control
from rljob_api.spec.common import PodSecurity
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.render import render
from rljob_operator.render.template import pod_template
from simulator.makers import META, Job, make_job

OURS = {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}
ALWAYS = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
LIMITS = JobPolicy.model_validate(
    {
        "limits": {
            "userIds": {"minimum": 1000, "maximum": 1999},
            "groupIds": {"minimum": 100, "maximum": 200},
            "runtimeClassNames": ["nvidia", "gvisor"],
            "schedulerNames": ["rack-scheduler", "volcano"],
        }
    }
)


def pods(policy: JobPolicy, **changes: Any) -> list[dict[str, Any]]:
    """Specs of trainer and rollout pods."""
    spec = policy.admit(raw_spec(**changes), "demo").result.accepted
    assert spec
    return [pod_template(META, spec, role)["spec"] for role in ("trainer", "rollout")]


def violations(policy: JobPolicy, **changes: Any) -> list[str]:
    return list(map(str, policy.admit(raw_spec(**changes), "demo").result.violations))


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


def test_a_scheduler_binds_all_pods_the_jobs_own_before_the_backends_and_the_administrators() -> None:
    default = JobPolicy.model_validate({"defaults": {"scheduling": {"schedulerName": "house"}}})
    volcano = {"backend": "volcano", "queue": "q"}
    for policy, scheduling, name in (
        (JobPolicy(), {}, None),
        (JobPolicy(), {"schedulerName": "rack-scheduler"}, "rack-scheduler"),
        (JobPolicy(), volcano, "volcano"),
        (JobPolicy(), volcano | {"schedulerName": "volcano-2"}, "volcano-2"),
        (default, {}, "house"),
        (default, {"backend": "none"}, "house"),
        (default, {"schedulerName": "rack-scheduler"}, "rack-scheduler"),
        (default, volcano, "volcano"),
    ):
        assert [pod.get("schedulerName") for pod in pods(policy, scheduling=scheduling)] == [name, name]


def test_the_administrators_own_scheduler_need_not_be_on_the_list() -> None:
    scheduling = {"defaults": {"scheduling": {"schedulerName": "house"}}, "limits": {"schedulerNames": ["volcano"]}}
    policy = JobPolicy.model_validate(scheduling)
    assert violations(policy) == violations(policy, scheduling={"backend": "volcano", "queue": "q"}) == []
    assert violations(policy, scheduling={"schedulerName": "mine"}) == [
        "spec.scheduling.schedulerName = mine: the administrator allows volcano; choose one of them, or ask the "
        "administrator of rljob"
    ]


PATCHED = JobPolicy.model_validate(
    {
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/rl"}},
        "podPatch": {
            "all": {
                "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
                "spec": {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True},
            },
            "models": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "HOME", "value": "/home"}]}]}},
            "rollout": {"spec": {"volumes": [{"name": "gib", "hostPath": {"path": "/home/gib"}}]}},
        },
    }
)


def test_the_administrator_shapes_pods_by_kind_and_annotates_their_account() -> None:
    job = make_job().having(policy=PATCHED)
    made = {(obj["kind"], obj["metadata"]["name"]): obj for obj in render(job.snapshot(), job.status)}
    account = made[("ServiceAccount", "demo-pods")]["metadata"]
    assert account["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/rl"}
    templates = {role: made[("StatefulSet", f"demo-{role}")]["spec"]["template"] for role in ("trainer", "rollout")}
    for role, template in templates.items():
        assert template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma"
        assert template["metadata"]["labels"]["rljob.dev/role"] == role
        assert template["spec"]["hostNetwork"] and template["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    home = {role: [e["value"] for e in _env(t) if e["name"] == "HOME"] for role, t in templates.items()}
    assert home == {"trainer": ["/home"], "rollout": ["/tmp"]}
    volumes = {role: [v["name"] for v in t["spec"]["volumes"]] for role, t in templates.items()}
    assert volumes["rollout"] == ["gib", *volumes["trainer"]], "as kubectl orders them"


def test_pods_from_before_a_new_patch_are_replaced_between_attempts_like_those_of_another_template() -> None:
    job = make_job().with_pods()
    assert not job.decide().delete
    assert {pod.name for pod in job.having(policy=PATCHED).decide().delete} == {"demo-trainer-0", "demo-trainer-1"}


def _env(template: dict[str, Any]) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = template["spec"]["containers"][0]["env"]
    return env


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


VOLUME = {"name": "models", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "models"}}}
DEFAULTS = {"env": [{"name": "A", "value": "1"}], "volumes": [VOLUME], "template": {"labels": {"team": "a"}}}


def test_pods_get_what_the_cluster_adds_to_their_job() -> None:
    policy = JobPolicy.model_validate({"defaults": DEFAULTS | {"image": "theirs:1"}})
    result = policy.admit({k: v for k, v in raw_spec().items() if k != "image"}, "demo").result
    assert result.accepted, result
    for role in ("trainer", "rollout"):
        template = pod_template(META, result.accepted, role)
        (container,) = template["spec"]["containers"]
        assert container["image"] == "theirs:1"
        assert {"name": "A", "value": "1"} in container["env"]
        assert {"name": "models", "mountPath": "/data", "readOnly": False} in container["volumeMounts"]
        assert template["metadata"]["labels"]["team"] == "a"


def test_a_running_attempt_keeps_the_defaults_that_it_began_with() -> None:
    before, after = (JobPolicy.model_validate({"defaults": {"image": image}}) for image in ("theirs:1", "theirs:2"))
    raw = {k: v for k, v in raw_spec().items() if k != "image"}
    old, new = (policy.admit(raw, "demo").result.accepted for policy in (before, after))
    assert old and new
    job = Job(old).with_attempt().running(step=3)
    control = Control(
        name="demo", namespace="research", job_uid="job-uid", attempt=1, resume={"policy": "auto"}, spec=old
    )
    decision = replace(job, spec=new).having(control=control).decide()
    assert decision.status.attempt and decision.status.attempt.command == "run"
    assert not decision.delete
    assert decision.status.message == (
        "a change of the cluster's defaults takes effect with the next attempt; `kubectl rljob restart demo` starts one"
    )


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
