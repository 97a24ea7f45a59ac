"""What all pods of a job have of the restricted Pod Security standard, where their variables come from, and the pods of environments, in which
programs run that nobody trusts.

Sandboxes share nothing with the job but its name: other images, no volume, no variable, no token of the cluster and no account with rights. What
runs the programs is a helper of ours: one static executable, which needs nothing of the image that it is put into. An init container of the job's
image brings it, and a token that is good for this one pod; what the token is made from stays there. The root file system is writable, since programs
expect that, and all that they write goes with the pod: none is used twice.
"""

from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.agent import EnvironmentPool
from rljob_api.status import RLJobMeta

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(spec: RLJobSpec) -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        **{k: v for k, v in spec.pod_security.dump().items() if v != []},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def token_variable(job: RLJobMeta, number: int) -> dict[str, Any]:
    """The job's token. `number`: status.token."""
    source = {"secretKeyRef": {"name": names.token(job.name, job.uid, number), "key": names.TOKEN_KEY}}
    return {"name": names.ENV_ROLLOUT_TOKEN, "valueFrom": source}


def field(path: str) -> dict[str, Any]:
    """A value of the pod's own."""
    return {"fieldRef": {"fieldPath": path}}


GRACE_SECONDS = 1
"""Between SIGTERM and SIGKILL: nothing in a sandbox is to be saved."""
HELPER = "rljob-helper"
"""Volume of the helper."""


def sandbox_pod(job: RLJobMeta, spec: RLJobSpec, role: str, token: int) -> dict[str, Any]:
    """What such a pod has that the job's other pods have otherwise, or not at all."""
    settings = spec.pods[role]
    assert isinstance(settings, EnvironmentPool)
    return {
        "serviceAccountName": names.sandboxes(job.name),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "runtimeClassName": settings.runtime_class_name,
        "initContainers": [_bringing(job, spec, token)],
        "containers": [_container(spec, role)],
        "volumes": [{"name": HELPER, "emptyDir": {}}, {"name": "rljob-work", "emptyDir": {}}],
    }


def _bringing(job: RLJobMeta, spec: RLJobSpec, token: int) -> dict[str, Any]:
    """The init container."""
    return {
        "name": "helper",
        "image": spec.template(names.ROLE_TRAINER).image or spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["python", "-m", "rljob_trainer", "sandbox", names.HELPER_DIR],
        "env": [{"name": names.ENV_POD_UID, "valueFrom": field("metadata.uid")}, token_variable(job, token)],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": HELPER, "mountPath": names.HELPER_DIR}],
    }


def _container(spec: RLJobSpec, role: str) -> dict[str, Any]:
    t = spec.template(role)
    own = {"HOME": names.SANDBOX_DIR} | {e.name: e for e in t.env}
    return {
        "name": names.container(role),
        "image": t.image or spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": [f"{names.HELPER_DIR}/helper", f"{names.HELPER_DIR}/token", str(names.ROLLOUT_PORT)],
        "workingDir": names.SANDBOX_DIR,
        "env": [{"name": k, "value": e} if isinstance(e, str) else e.dump() for k, e in own.items()],
        "resources": spec.container_resources(role),
        "securityContext": CONTAINER_SECURITY | {"readOnlyRootFilesystem": False},
        "ports": [{"name": "helper", "containerPort": names.ROLLOUT_PORT}],
        "readinessProbe": {"tcpSocket": {"port": names.ROLLOUT_PORT}, "periodSeconds": 1, "failureThreshold": 1},
        "volumeMounts": [
            {"name": HELPER, "mountPath": names.HELPER_DIR, "readOnly": True},
            {"name": "rljob-work", "mountPath": names.SANDBOX_DIR},
        ],
    }
