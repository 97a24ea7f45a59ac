"""The children of a job, whole."""

import json
from collections import Counter
from typing import Any

import pytest

from rljob_api import names
from rljob_api.protocol import Control, GangAddress, RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, LastFailure, RLJobMeta
from rljob_operator.model.children import metadata
from rljob_operator.render import render, template
from rljob_operator.render.template import pod_template
from rljob_operator.times import stamp
from simulator.makers import META, NOW, Job, make_job
from simulator.world import World

OWNER = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "name": "demo",
    "uid": "job-uid",
    "controller": True,
    "blockOwnerDeletion": True,
}


def children(job: Job, **live: Any) -> dict[tuple[str, str], dict[str, Any]]:
    snapshot = job.having(fresh_token="secret", **live).snapshot()
    return {(o["kind"], o["metadata"]["name"]): o for o in render(snapshot, snapshot.status)}


OLD = {"metadata": {"labels": {"by": "another release"}}}


def existing(*roles: str) -> dict[tuple[str, str], dict[str, Any]]:
    """As somebody else's release made them."""
    spec = {"replicas": 1, "template": OLD}
    return {
        ("StatefulSet", f"demo-{role}"): {"metadata": metadata(META, f"demo-{role}", role), "spec": spec}
        for role in roles
    }


def test_a_job_has_these_children_and_pods_come_last() -> None:
    assert [f"{kind} {name}" for kind, name in children(make_job())] == [
        "ServiceAccount demo-pods",
        "Role demo-pods",
        "RoleBinding demo-pods",
        "NetworkPolicy demo-pods",
        "ConfigMap demo-trainer-0-report",
        "ConfigMap demo-trainer-1-report",
        "ConfigMap demo-rollout-0-report",
        "ConfigMap demo-control",
        "Secret demo-token-job-uid-1",
        "StatefulSet demo-trainer",
        "StatefulSet demo-rollout",
    ]


def test_every_child_is_owned_by_this_very_job_and_labelled() -> None:
    for child in children(make_job()).values():
        assert child["metadata"]["ownerReferences"] == [OWNER]
        assert child["metadata"]["labels"].items() >= {names.LABEL_JOB: "demo", names.LABEL_MANAGED_BY: "rljob"}.items()


def test_a_pod_may_read_the_control_and_write_its_jobs_reports_and_nothing_else() -> None:
    role = children(make_job())[("Role", "demo-pods")]
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["demo-control"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["demo-trainer-0-report", "demo-trainer-1-report", "demo-rollout-0-report"],
            "verbs": ["get", "patch"],
        },
    ]


def test_reports_are_made_without_data() -> None:
    assert "data" not in children(make_job())[("ConfigMap", "demo-trainer-0-report")]


def test_pods_of_a_job_are_reached_by_each_other_only() -> None:
    ours = {"matchLabels": {names.LABEL_JOB: "demo", names.LABEL_MANAGED_BY: "rljob"}}
    no_sandbox = {"key": names.LABEL_SANDBOX, "operator": "DoesNotExist"}
    assert children(make_job())[("NetworkPolicy", "demo-pods")]["spec"] == {
        "podSelector": ours,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": ours | {"matchExpressions": [no_sandbox]}}]}],
    }
    assert ("NetworkPolicy", "demo-pods") not in children(make_job(), network_policy=False)


def test_a_stateful_set_starts_all_pods_at_once_and_replaces_none_by_itself() -> None:
    spec = children(make_job())[("StatefulSet", "demo-trainer")]["spec"]
    del spec["template"]
    assert spec == {
        "replicas": 2,
        "serviceName": "demo-pods",
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 1,
        "selector": {
            "matchLabels": {names.LABEL_JOB: "demo", names.LABEL_MANAGED_BY: "rljob", names.LABEL_ROLE: "trainer"}
        },
    }


@pytest.mark.parametrize(
    "status", [JobStatus(suspended=True), JobStatus(outcome="Succeeded"), JobStatus(outcome="Failed")]
)
def test_a_job_that_is_over_or_suspended_has_no_pods(status: JobStatus) -> None:
    job = make_job().with_status(suspended=status.suspended, outcome=status.outcome)
    found = children(job, children=existing("trainer", "rollout"))
    assert [found[("StatefulSet", f"demo-{role}")]["spec"]["replicas"] for role in ("trainer", "rollout")] == [0, 0]


def test_a_stateful_set_in_use_is_not_touched_and_a_missing_one_is_made() -> None:
    found = children(make_job().with_attempt(), children=existing("trainer"))
    assert [name for kind, name in found if kind == "StatefulSet"] == ["demo-rollout"]


def test_rollouts_are_scaled_beside_an_attempt_and_keep_their_template() -> None:
    job = make_job(rollout={"replicas": 3, "minReplicas": 2}).with_attempt(3)
    published = Control.model_validate_json(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])
    for replicas, size in ((5, 5), (2, 2), (1, 2)):
        scaled = make_job(rollout={"replicas": replicas, "minReplicas": 1}, image="trainer:next")
        edited = Job(scaled.spec, job.status, job.pods, job.reports)
        found = children(edited, control=published, children=existing("trainer", "rollout"))
        assert found[("StatefulSet", "demo-rollout")]["spec"] == {"replicas": size, "template": OLD}
        assert ("StatefulSet", "demo-trainer") not in found
        reports = [name for kind, name in found if kind == "ConfigMap" and "rollout" in name]
        assert len(reports) == size


def test_pods_of_a_former_job_are_waited_for() -> None:
    found = children(make_job().with_pods(deleting=True))
    assert [name for kind, name in found if kind == "StatefulSet"] == ["demo-rollout"]


def test_the_token_is_made_only_once() -> None:
    assert children(make_job())[("Secret", "demo-token-job-uid-1")]["stringData"] == {"token": "secret"}
    there = make_job().with_pods().with_rollout()
    assert ("Secret", "demo-token-job-uid-1") not in children(there, children=existing("trainer", "rollout"))
    assert ("Secret", "demo-token-job-uid-1") not in children(there), "a set was deleted: its pods will find the Secret"
    replaced = children(there.with_status(token=2), children=existing("trainer", "rollout"))
    assert replaced[("Secret", "demo-token-job-uid-2")]["stringData"] == {"token": "secret"}


def test_the_control_says_what_the_status_says() -> None:
    job = make_job().with_attempt(7, command="drain", resume_step=4).with_rollout()
    control = Control.model_validate_json(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])
    attempt = job.status.attempt
    assert attempt
    assert control == Control(
        name="demo",
        namespace="research",
        job_uid="job-uid",
        attempt=7,
        command="drain",
        members=attempt.members,
        gangs={names.ROLE_TRAINER: GangAddress(address="10.0.0.0", master_port=names.master_port(7))},
        resume={"policy": "auto", "step": 4},
        rollouts=[RolloutEndpoint(pod="demo-rollout-0", pod_uid="rollout-0", url="http://10.0.1.0:8000")],
        spec=job.spec,
    )


@pytest.mark.parametrize(
    ("reason", "expected"), [("ApplicationFailed", 6), ("OutOfMemory", 6), ("NodeLost", 0), ("PodDisrupted", 0)]
)
def test_the_control_names_the_attempt_that_its_own_processes_ended(reason: str, expected: int) -> None:
    job = make_job().with_attempt(7).with_status(last_failure=LastFailure(attempt=6, reason=reason))
    control = Control.model_validate_json(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])
    assert control.failed_attempt == expected


def test_a_closed_attempt_is_over_for_whoever_still_listens() -> None:
    job = make_job().with_attempt(7, command="run", ended_at=stamp(NOW))
    assert json.loads(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])["command"] == "stop"


@pytest.mark.parametrize("change", [{"ready": False}, {"deleting": True}, {"ip": ""}, {"lost_since": NOW}])
def test_only_rollouts_that_answer_are_endpoints(change: dict[str, Any]) -> None:
    job = make_job().with_attempt().with_rollout(**change)
    assert json.loads(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])["rollouts"] == []


def test_a_rollout_with_an_ipv6_address_has_a_url_that_can_be_read() -> None:
    job = make_job().with_attempt().with_rollout(ip="fd00::7")
    (endpoint,) = json.loads(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])["rollouts"]
    assert endpoint["url"] == "http://[fd00::7]:8000"


def test_an_open_attempt_keeps_the_spec_it_was_published_with() -> None:
    job = make_job().with_attempt(3)
    published = json.loads(children(job)[("ConfigMap", "demo-control")]["data"]["control.json"])
    edited = Job(make_job(image="trainer:next").spec, job.status, job.pods, job.reports)
    found = children(edited, control=Control.model_validate(published), children=existing("trainer", "rollout"))
    assert json.loads(found[("ConfigMap", "demo-control")]["data"]["control.json"])["spec"]["image"] == "trainer:test"


TRAINER_POD = {
    "metadata": {
        "labels": {names.LABEL_JOB: "demo", names.LABEL_MANAGED_BY: "rljob", names.LABEL_ROLE: "trainer"},
        "annotations": {},
    },
    "spec": {
        "serviceAccountName": "demo-pods",
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "schedulingGates": [{"name": names.GATE}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "trainer",
                "image": "trainer:test",
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "rljob_trainer", "launch"],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "env": [
                    {"name": "HOME", "value": "/data"},
                    {"name": "USER", "value": "rljob"},
                    {"name": "PYTHONUNBUFFERED", "value": "1"},
                    {"name": "RLJOB_NAME", "value": "demo"},
                    {"name": "RLJOB_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                    {"name": "RLJOB_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "RLJOB_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                    {"name": "RLJOB_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "RLJOB_WORK", "value": "/run/rljob"},
                    {
                        "name": "RLJOB_ROLLOUT_TOKEN",
                        "valueFrom": {"secretKeyRef": {"name": "demo-token-job-uid-1", "key": "token"}},
                    },
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "rljob-work", "mountPath": "/run/rljob"},
                    {"name": "rljob-tmp", "mountPath": "/tmp"},
                    {"name": "rljob-shm", "mountPath": "/dev/shm"},
                    {"name": "data", "mountPath": "/data", "readOnly": False},
                ],
            }
        ],
        "volumes": [
            {"name": "rljob-work", "emptyDir": {}},
            {"name": "rljob-tmp", "emptyDir": {}},
            {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
    },
}


def test_the_pods_of_a_trainer_whole() -> None:
    volume = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
    job = make_job(volumes=[volume], env=[{"name": "HOME", "value": "/data"}])
    template = pod_template(META, job.spec, "trainer")
    digest = template["metadata"]["annotations"].pop(names.ANNOTATION_TEMPLATE_HASH)
    assert len(digest) == 16
    assert template == TRAINER_POD


def test_gpus_follow_the_process_counts() -> None:
    spec = make_job(
        trainer={"device": "gpu", "processesPerNode": 8, "resourceName": "example.com/gpu"},
        rollout={"tensorParallel": 2, "template": {"resources": {"limits": {"memory": "8Gi"}}}},
    ).spec
    trainer, rollout = (
        pod_template(META, spec, role)["spec"]["containers"][0]["resources"] for role in ("trainer", "rollout")
    )
    assert trainer == {"limits": {"example.com/gpu": "8"}}
    assert rollout == {"limits": {"memory": "8Gi", "example.com/gpu": "2"}}


def test_a_rollout_is_ready_when_its_server_answers() -> None:
    container = pod_template(META, make_job().spec, "rollout")["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert "livenessProbe" not in container


def test_labels_of_ours_cannot_be_replaced() -> None:
    template = {"labels": {names.LABEL_JOB: "other", "team": "a"}, "annotations": {"note": "b"}}
    meta = pod_template(META, make_job(trainer={"device": "cpu", "template": template}).spec, "trainer")["metadata"]
    assert meta["labels"][names.LABEL_JOB] == "demo"
    assert meta["labels"]["team"] == "a"
    assert meta["annotations"]["note"] == "b"


def test_a_template_hash_changes_with_the_template_and_only_with_it() -> None:
    hashes = [
        pod_template(META, make_job(**change).spec, "trainer")["metadata"]["annotations"][
            names.ANNOTATION_TEMPLATE_HASH
        ]
        for change in ({}, {"train": {"steps": 20}}, {"image": "trainer:next"})
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_pods_of_a_pool_run_its_server() -> None:
    pool = {"name": "judge", "model": "/data/judge", "tensorParallel": 2, "shmSize": "8Gi"}
    spec = make_job(trainer={"device": "gpu"}, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}]).spec
    template = pod_template(META, spec, "judge")
    (container,) = template["spec"]["containers"]
    assert container["command"] == ["python", "-m", "rljob_trainer", "pool", "judge"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert names.ENV_ROLLOUT_TOKEN in {entry["name"] for entry in container["env"]}
    assert template["spec"]["volumes"][2]["emptyDir"]["sizeLimit"] == "8Gi"
    assert template["metadata"]["labels"][names.LABEL_ROLE] == "judge"


async def test_a_reconcile_renders_every_template_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its hash and its StatefulSet: a crowd of jobs that start costs the operator little else."""
    world, rendered, render_template = World(), Counter[str](), template._template
    world.apply()
    world.asleep = True
    await world.turn()

    def counted(job: RLJobMeta, spec: RLJobSpec, role: str, token: int) -> dict[str, Any]:
        rendered[role] += 1
        return render_template(job, spec, role, token)

    monkeypatch.setattr(template, "_template", counted)
    await world.reconcile("demo")
    assert rendered == {"trainer": 1, "rollout": 1}
