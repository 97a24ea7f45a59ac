"""What an administrator may patch in the pods of jobs, and that the rest is refused by its path when the operator starts."""

from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api.policy import JobPolicy
from rljob_api.type_errors import first_problem

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
        {"all": {"spec": {"securityContext": {"$patch": "replace", "fsGroup": 7}}}},
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
