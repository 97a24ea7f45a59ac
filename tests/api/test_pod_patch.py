"""What an administrator may patch in the pods of jobs, and that the rest is refused by its path when the operator starts."""

from typing import Any

import pytest
from pydantic import ValidationError

from api.specs import make_spec
from rljob_api.backends import BACKENDS, BackendName, readers_of
from rljob_api.policy import JobPolicy
from rljob_api.type_errors import first_problem
from rljob_operator.schedulers import scheduler_of
from simulator.makers import META

SIDECAR = {"name": "agent", "image": "agent:1", "restartPolicy": "Always", "env": [{"name": "PATH", "value": "/bin"}]}


def refused(**patch: Any) -> str:
    with pytest.raises(ValidationError) as error:
        JobPolicy.model_validate({"podPatch": patch})
    return first_problem(error.value)


def trainer(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer"} | fields]}}


@pytest.mark.parametrize(
    "patch",
    [
        {"all": {"metadata": {"annotations": {"networks": "rdma"}}, "spec": {"dnsPolicy": "None"}}},
        {"all": {"spec": {"hostNetwork": True, "dnsConfig": {"nameservers": ["10.0.0.1"]}}}},
        {"all": {"spec": {"initContainers": [SIDECAR], "resourceClaims": [{"name": "nic"}]}}},
        {"models": trainer(resources={"claims": [{"name": "nic"}]}, securityContext={"runAsNonRoot": None})},
        {"models": trainer(volumeMounts=[{"name": "gib", "mountPath": "/usr/local/gib"}])},
        {"rollout": {"spec": {"volumes": [{"name": "gib", "hostPath": {"path": "/home/gib"}}]}}},
        {"pools": {"spec": {"containers": [{"name": "server", "env": [{"name": "A", "value": "b"}]}]}}},
        {"workers": {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]}}},
        {"sandboxes": {"spec": {"containers": [{"name": "sandbox", "env": [{"name": "A", "value": "b"}]}]}}},
        {"all": {"spec": {"securityContext": {"$patch": "replace", "fsGroup": 7}}}},
        {"all": {"metadata": {"labels": {"kai.scheduler/node-pool": "a", "team": None}}}},
        {"all": {"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "$patch": "delete"}]}}},
    ],
)
def test_what_clouds_and_administrators_add_is_taken(patch: dict[str, Any]) -> None:
    JobPolicy.model_validate({"podPatch": patch})


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"everyone": {}}, "podPatch.everyone: there is no such field"),
        ({"all": {"kind": "Pod"}}, "kind is no part of a pod template"),
        ({"all": {"spec": None}}, "spec is no part of a pod template"),
        ({"all": {"metadata": {"name": "x"}}}, "metadata.name is neither labels nor annotations"),
        ({"all": {"metadata": {"labels": None}}}, "metadata.labels is neither labels nor annotations"),
        ({"all": {"metadata": {"labels": {"rljob.dev/job": "x"}}}}, "metadata.labels.rljob.dev/job belongs to the"),
        ({"all": {"metadata": {"labels": {"$patch": "replace"}}}}, "metadata.labels.$patch belongs to the operator"),
        ({"all": {"spec": {"$patch": "replace"}}}, "spec.$patch belongs to the operator"),
        ({"all": {"spec": {"$setElementOrder/volumes": []}}}, "spec.$setElementOrder/volumes is no directive"),
        ({"all": {"spec": {"nodeName": "n1"}}}, "spec.nodeName belongs to the operator"),
        ({"all": {"spec": {"tolerations": []}}}, "spec.tolerations has a field of its own"),
        ({"all": {"spec": {"volumes": None}}}, "spec.volumes is no list of entries, each with its name"),
        ({"all": {"spec": {"volumes": [{"emptyDir": {}}]}}}, "spec.volumes[0] has no name"),
        ({"all": {"spec": {"volumes": ["x"]}}}, "spec.volumes[0] has no name"),
        ({"all": {"spec": {"volumes": [{"name": "rljob-tmp"}]}}}, "spec.volumes[0] belongs to the operator"),
        ({"all": trainer()}, "spec.containers[0] has another name in each kind of pods"),
        (
            {"models": {"spec": {"containers": [{"name": "agent"}]}}},
            "spec.containers[0] is not trainer: add others as init",
        ),
        ({"all": {"metadata": {"labels": {"a": 1}}}}, "metadata.labels.a is no text"),
        ({"all": {"metadata": {"annotations": {"a": True}}}}, "metadata.annotations.a is no text"),
        ({"all": {"spec": {"tolerationz": []}}}, "spec.tolerationz is no field of a pod's spec"),
        ({"all": {"spec": {"activeDeadlineSeconds": 9}}}, "spec.activeDeadlineSeconds would end pods"),
        ({"all": {"spec": {"hostname": "x"}}}, "spec.hostname belongs to the operator"),
        ({"all": {"spec": {"resources": {"requests": {"cpu": "1"}}}}}, "spec.resources has a field of its own"),
        (
            {"all": {"spec": {"volumes": [{"name": "a", "$patch": "replace"}]}}},
            "spec.volumes[0].$patch may only be delete",
        ),
        (
            {"all": {"spec": {"dnsConfig": {"options": [{"name": "a", "$patch": "delete"}]}}}},
            "spec.dnsConfig.options[0].$patch may only be delete here, in a list that is merged",
        ),
        (
            {"all": {"spec": {"volumes": [{"name": "a", "$patch": "delete"}, {"name": "a", "emptyDir": {}}]}}},
            "spec.volumes[1] has the name of another entry",
        ),
        (
            {"models": trainer(env=[{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}])},
            "spec.containers[0].env[2] has the name of another entry",
        ),
        (
            {"all": {"spec": {"initContainers": [{"name": "a", "ports": [{"containerPort": 1}] * 2}]}}},
            "spec.initContainers[0].ports[1] has the containerPort of another entry",
        ),
        ({"models": trainer(command=["sh"])}, "spec.containers[0].command belongs to the operator"),
        ({"models": trainer(**{"$patch": "delete"})}, "spec.containers[0].$patch belongs to the operator"),
        ({"models": trainer(resources={"limits": {"cpu": 1}})}, "spec.containers[0].resources has a field of its own"),
        ({"models": trainer(resources=None)}, "spec.containers[0].resources has a field of its own"),
        ({"models": trainer(env=[{"name": "RANK", "value": "0"}])}, "spec.containers[0].env[0] belongs to the"),
        ({"models": trainer(env=None)}, "spec.containers[0].env is no list of entries"),
        ({"models": trainer(volumeMounts=[{"mountPath": "/tmp", "name": "x"}])}, "volumeMounts[0] belongs to the"),
    ],
)
def test_what_belongs_to_the_operator_or_to_specs_is_refused_by_its_path(patch: dict[str, Any], problem: str) -> None:
    assert problem in refused(**patch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_backend_knows_its_pods_by_is_refused(backend: BackendName) -> None:
    scheduling = {"backend": backend} | ({"queue": "q"} if backend in readers_of("queue") else {})
    levels = {"topologyLevels": ["rack"]} if backend in readers_of("topologyLevels") else {}
    required = [{}, {"requiredLevel": "rack"}] if backend in readers_of("requiredLevel") else [{}]
    servers = {"nodes": 2, "tensorParallel": 2}
    specs = [make_spec(scheduling=scheduling | levels | level, rollout=servers) for level in required]
    settings = [scheduler_of(s).pod_settings(META, s, role) for s in specs for role in ("trainer", "rollout")]
    assert {key for s in settings for key in (*s.labels, *s.annotations)} == BACKENDS[backend].pod_keys
    for kind in ("labels", "annotations"):
        for key in {key for s in settings for key in getattr(s, kind)}:
            where = f"metadata.{kind}.{key}"
            assert f"{where} belongs to the operator" in refused(all={"metadata": {kind: {key: "x"}}})
