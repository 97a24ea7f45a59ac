"""What a job's author may not say about its pods."""

from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.rules.volumes import OUR_MOUNTS, SOURCES
from rljob_api.spec.common import Template
from rljob_operator.render.template import pod_template
from simulator.makers import META, make_job

REPOSITORY = Path(__file__).parents[2]
DATA = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}


def fields(**changes: Any) -> list[str]:
    return [v.field for v in validate(raw_spec(**changes), "demo").violations]


def with_volume(**changes: Any) -> list[str]:
    return fields(volumes=[DATA, {"name": "more", "mountPath": "/more", "source": {"emptyDir": {}}} | changes])


NAMED = {"persistentVolumeClaim": "claimName", "secret": "secretName", "configMap": "name"}


@pytest.mark.parametrize("kind", SOURCES)
def test_volumes_of_the_restricted_standard_are_taken(kind: str) -> None:
    assert with_volume(source={kind: {NAMED[kind]: "a"} if kind in NAMED else {}}) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"persistentVolumeClaim": {"claimname": "data"}},
            "spec.volumes[1].source.persistentVolumeClaim.claimName = unset: is required; write claimName in place of claimname",
        ),
        (
            {"persistentVolumeClaim": {}},
            "spec.volumes[1].source.persistentVolumeClaim.claimName = unset: is required; "
            "see `kubectl explain pod.spec.volumes.persistentVolumeClaim`",
        ),
        (
            {"secret": {"name": "a"}},
            "spec.volumes[1].source.secret.secretName = unset: is required; write secretName in place of name",
        ),
        (
            {"configMap": {"configMapName": "a"}},
            "spec.volumes[1].source.configMap.name = unset: is required; write name in place of configMapName",
        ),
        (
            {"persistentVolumeClaim": {"claimName": 3}},
            'spec.volumes[1].source.persistentVolumeClaim.claimName = 3: must be a text; write "3", in quotes',
        ),
        (
            {"persistentVolumeClaim": "data"},
            'spec.volumes[1].source.persistentVolumeClaim = "data": must be an object with fields of its own; write {claimName: data}',
        ),
    ],
)
def test_a_volume_names_what_it_is_made_from(source: dict[str, Any], message: str) -> None:
    given = raw_spec(volumes=[DATA, {"name": "more", "mountPath": "/more", "source": source}])
    assert [str(v) for v in validate(given, "demo").violations] == [message]


@pytest.mark.parametrize(
    "source",
    [
        {"hostPath": {"path": "/"}},
        {"nfs": {"server": "a", "path": "/"}},
        {},
        {"emptyDir": {}, "hostPath": {"path": "/"}},
        {"emptyDir": {}, "name": "rljob-work"},
    ],
)
def test_other_volumes_are_refused(source: dict[str, Any]) -> None:
    assert with_volume(source=source) == ["spec.volumes[1].source"]


@pytest.mark.parametrize("path", [*OUR_MOUNTS, "/tmp/"])
def test_our_mounts_are_not_mounted_over(path: str) -> None:
    assert with_volume(mountPath=path) == ["spec.volumes[1].mountPath"]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/", "hides files that every image needs"),
        ("//", "hides files that every image needs"),
        ("/usr/", "hides files that every image needs"),
        ("/proc", "hides files that every image needs"),
        ("/app", "hides files that every image needs"),
        ("/c:/data", "holds a colon, which the API server refuses"),
    ],
)
def test_a_volume_hides_nothing_that_runs(path: str, rule: str) -> None:
    given = raw_spec(volumes=[DATA, {"name": "more", "mountPath": path, "source": {"emptyDir": {}}}])
    assert [(v.field, v.rule) for v in validate(given, "demo").violations] == [("spec.volumes[1].mountPath", rule)]


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT"])
def test_no_variable_puts_other_code_into_every_process(name: str) -> None:
    assert fields(env=[{"name": name, "value": "/data/x.so"}]) == ["spec.env[0].name"]


def test_quantities_may_be_whole_numbers_as_everywhere_in_kubernetes() -> None:
    amounts = {"cpu": 8, "memory": "64Gi", "example.com/nic": 2}
    given = {"shmSize": 2**30, "template": {"resources": {"requests": amounts, "limits": amounts}}}
    spec = make_spec(trainer={"device": "cpu"} | given)
    texts = {"cpu": "8", "memory": "64Gi", "example.com/nic": "2"}
    assert spec.container_resources(names.ROLE_TRAINER) == {"requests": texts, "limits": texts}
    assert spec.trainer.shm_size == str(2**30)


@pytest.mark.parametrize("amount", [-1, True, 0.5])
def test_other_amounts_are_no_quantities(amount: object) -> None:
    given = {"device": "cpu", "template": {"resources": {"limits": {"cpu": amount}}}}
    assert fields(trainer=given) == ["spec.trainer.template.resources.limits.cpu"]


def test_names_and_paths_stand_once_and_are_not_ours() -> None:
    assert with_volume(name="data", mountPath="/data/") == ["spec.volumes[1].name", "spec.volumes[1].mountPath"]
    assert with_volume(name="rljob-work") == ["spec.volumes[1].name"]


@pytest.mark.parametrize("role", ["trainer", "rollout"])
@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("key", [names.LABEL_JOB, names.ANNOTATION_UNGATED, names.LABEL_MANAGED_BY])
def test_our_labels_and_annotations_are_refused(role: str, kind: str, key: str) -> None:
    assert fields(**{role: {"template": {kind: {key: "x"}}}}) == [f"spec.{role}.template.{kind}.{key}"]


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_devices_follow_from_the_processes_and_no_request_is_above_its_limit(role: str) -> None:
    given = {"requests": {"cpu": "1500m", "memory": "64Gi"}, "limits": {"cpu": "1", "nvidia.com/gpu": "4"}}
    resources = f"spec.{role}.template.resources"
    changes: dict[str, dict[str, Any]] = {"trainer": {"device": "gpu"}, "rollout": {}}
    changes[role]["template"] = {"resources": given}
    assert fields(**changes) == [f"{resources}.limits.nvidia.com/gpu", f"{resources}.requests.cpu"]


RELIED_UPON = ("RLJOB_WORK", "MASTER_ADDR", "PET_NNODES", "KUBERNETES_SERVICE_HOST", "PATH", "PYTHONPATH")


@pytest.mark.parametrize("name", RELIED_UPON)
def test_variables_on_which_images_and_launchers_rely_are_refused(name: str) -> None:
    env = [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": name, "value": "x"}]
    assert fields(env=env) == ["spec.env[1].name"]
    for role in ("trainer", "rollout"):
        assert fields(**{role: {"template": {"env": env}}}) == [f"spec.{role}.template.env[1].name"]


def test_what_the_images_set_for_python_is_refused() -> None:
    images = [*(REPOSITORY / "images").glob("*/Dockerfile"), REPOSITORY / "Dockerfile.megatron"]
    lines = [line for image in images for line in image.read_text().splitlines() if line.startswith("ENV ")]
    variables = {part.partition("=")[0] for line in lines for part in line.split()[1:]}
    assert {v for v in variables if v.endswith("PATH")} <= set(names.RESERVED_ENV)


def test_a_template_offers_these_settings_and_no_others() -> None:
    """docs/security.md says what each can do. A setting that is added here is added there."""
    assert set(Template.model_fields) == {
        "image",
        "resources",
        "node_selector",
        "tolerations",
        "affinity",
        "env",
        "labels",
        "annotations",
        "priority_class_name",
        "termination_grace_period_seconds",
        "resource_claims",
    }


def test_nothing_in_a_spec_changes_the_security_of_its_pods() -> None:
    everything = {
        "image": "other:1",
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAffinity": {}},
        "env": [{"name": "A", "value": "b"}],
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 5,
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
    }
    plain, full = (
        pod_template(META, make_job(**changes).spec, "trainer")["spec"]
        for changes in ({}, {"trainer": {"device": "cpu", "template": everything}, "volumes": [DATA]})
    )
    for pod in (plain, full):
        assert not {"hostNetwork", "hostPID", "hostIPC", "runtimeClassName", "initContainers"} & pod.keys()
        assert pod["serviceAccountName"] == names.pods("demo")
        assert len(pod["containers"]) == 1
    assert plain["securityContext"] == full["securityContext"]
    assert plain["containers"][0]["securityContext"] == full["containers"][0]["securityContext"]


@pytest.mark.parametrize("at", ["env", "template"])
def test_a_variable_stands_once(at: str) -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}, {"name": "A", "value": "2"}]
    changes: dict[str, Any] = {"env": twice} if at == "env" else {"trainer": {"template": {"env": twice}}}
    field = "spec.env" if at == "env" else "spec.trainer.template.env"
    assert fields(**changes) == [f"{field}[2].name"]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_variables_do_not_choose_gpus(name: str) -> None:
    """But they may hide all of them, from a pod that has none."""
    assert fields(env=[{"name": name, "value": "0,1"}]) == ["spec.env[0].name"]
    assert fields(env=[{"name": name, "value": "all"}]) == ["spec.env[0].name"]
    assert not fields(trainer={"template": {"env": [{"name": name, "value": "void"}]}})


def test_a_queue_of_kueue_is_no_label_of_pods_that_another_backend_places() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    at = "spec.trainer.template.labels.kueue.x-k8s.io/queue-name"
    assert fields(trainer={"template": {"labels": labels}}) == [at]
