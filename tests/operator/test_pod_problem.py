"""What Kubernetes says is missing comes with the field of the spec that names it, and with what to do."""

from typing import Any

import pytest

from rljob_api import names
from simulator.makers import Job, make_job

CLAIM = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "dada"}}}
KEYS = {"name": "keys", "mountPath": "/etc/keys", "source": {"secret": {"secretName": "keys"}}}
PROJECTED = {"projected": {"sources": [{"configMap": {"name": "files"}}]}}
FILES = {"name": "files", "mountPath": "/etc/files", "source": PROJECTED}
TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
FAILED = 'failed to pull and unpack image "{0}": failed to resolve reference "{0}": unexpected status: 403 Forbidden'


def waiting_for(said: str, **changes: Any) -> str:
    """The message of a job whose trainer's container waits."""
    return waiting(make_job(1, **changes), waiting=said)


def waiting(job: Job, **pod: str) -> str:
    return job.with_pods(phase="Pending", ready=False, running=False, ip="", **pod).next().message


@pytest.mark.parametrize(
    ("said", "changes", "field"),
    [
        ('secret "keys" not found', {"volumes": [CLAIM, KEYS]}, "spec.volumes[1].source.secret.secretName"),
        (
            'configmap "files" not found',
            {"volumes": [CLAIM, FILES]},
            "spec.volumes[1].source.projected.sources[0].configMap.name",
        ),
        ('secret "wandb" not found', {"envFrom": [{"secretRef": {"name": "wandb"}}]}, "spec.envFrom[0].secretRef.name"),
        ('secret "hub" not found', {"env": [TOKEN]}, "spec.env[0].valueFrom.secretKeyRef.name"),
    ],
)
def test_an_object_that_does_not_exist_is_named_with_its_field_and_namespace(
    said: str, changes: dict[str, Any], field: str
) -> None:
    message = waiting_for(f"CreateContainerConfigError: {said}", **changes)
    assert message.endswith(f"{said}; create it in namespace research, or correct {field}")


def test_a_claim_that_does_not_exist_is_named_with_its_field_and_namespace() -> None:
    said = '0/2 nodes are available: persistentvolumeclaim "dada" not found. not found'
    message = waiting(make_job(1, volumes=[CLAIM]), unschedulable=said)
    field = "spec.volumes[0].source.persistentVolumeClaim.claimName"
    assert message.endswith(f"cannot be scheduled: {said}; create it in namespace research, or correct {field}")


def test_a_secret_of_the_same_name_as_a_config_map_is_not_taken_for_it() -> None:
    assert "correct" not in waiting_for('CreateContainerConfigError: secret "files" not found', volumes=[CLAIM, FILES])


def test_a_secret_of_rljobs_own_is_nothing_that_users_create() -> None:
    said = 'CreateContainerConfigError: secret "demo-secret" not found'
    assert waiting_for(said).endswith(f"demo-trainer-0: {said}")


def test_a_key_that_a_secret_lacks_is_named_with_the_field_of_the_secret() -> None:
    said = "CreateContainerConfigError: couldn't find key token in Secret research/hub"
    message = waiting_for(said, env=[TOKEN])
    assert message.endswith(f"{said}; add the key, or correct spec.env[0].valueFrom.secretKeyRef.name")


@pytest.mark.parametrize(
    "said",
    [
        f"ErrImagePull: {FAILED}",
        f'ImagePullBackOff: Back-off pulling image "{{0}}": ErrImagePull: {FAILED}',
    ],
)
def test_an_image_that_cannot_be_pulled_is_named_with_its_field_before_the_cause(said: str) -> None:
    image = "registry.example.com/team/trainer:0.1.0"
    message = waiting_for(said.format(image), image=image)
    reason = said.partition(":")[0]
    assert f"{reason}: spec.image = {image}: push it, correct the name, or name the Secret" in message
    assert message.endswith("spec.imagePullSecrets: unexpected status: 403 Forbidden")


def test_an_image_of_one_role_is_named_with_the_field_of_that_role() -> None:
    trainer = {"device": "cpu", "nodes": 1, "template": {"image": "Team/trainer"}}
    said = 'InvalidImageName: Failed to apply default image tag "Team/trainer": repository name must be lowercase'
    message = waiting_for(said, trainer=trainer)
    assert "InvalidImageName: spec.trainer.template.image = Team/trainer: push it" in message
    assert message.endswith(": repository name must be lowercase")


def test_an_image_that_nobody_has_published_is_named_with_how_to_get_it() -> None:
    image = f"{names.UNPUBLISHED}rljob/trainer:0.1.0"
    message = waiting_for(f'ImagePullBackOff: Back-off pulling image "{image}"', image=image)
    assert f"ImagePullBackOff: spec.image = {image}: {names.PUBLISH}" in message
