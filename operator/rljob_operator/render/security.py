"""What all pods of a job have of the restricted Pod Security standard, and where their variables come from."""

from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
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
