"""A temporary pod, owned by the user, with a job's volumes: to read what the job wrote, also after it has ended."""

import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kubectl_rljob.cluster import Cluster, Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.session import Session
from rljob_api import names
from rljob_api.rules.volumes import OUR_VOLUMES
from rljob_api.spec import RLJobSpec

LABEL = f"{names.GROUP}/shell"
CONTAINER = "shell"
LIFETIME = 8 * 3600
"""Seconds after which the pod ends, if nobody was left to delete it."""
PATIENCE, POLL = 300.0, 1.0
"""Seconds to wait for the pod to run, and between polls."""


@contextmanager
def volume_pod(session: Session, cluster: Cluster, job: Job) -> Iterator[Place]:
    """A container that runs until the context ends. Raises UserError."""
    body = manifest(job, job.readable_spec(), cluster.pod_spec(job, names.ROLE_TRAINER))
    with temporary(session, cluster, job.namespace, body) as place:
        yield place


@contextmanager
def temporary(session: Session, cluster: Cluster, namespace: str, body: dict[str, Any]) -> Iterator[Place]:
    """The pod `body`, from `manifest`, until the context ends. Raises UserError."""
    with _ended_by_signals():
        name = cluster.create_pod(namespace, body)
        try:
            _until_running(session, cluster, namespace, name)
            yield Place(namespace, name, CONTAINER)
        finally:
            _delete(session, cluster, namespace, name)


@contextmanager
def reading_pod(session: Session, cluster: Cluster, job: Job) -> Iterator[Place]:
    """A container that has the job's volumes: a trainer's that runs, or else one that is made for it. Raises UserError."""
    if running := cluster.pods(job, names.ROLE_TRAINER, running=True):
        yield Place(job.namespace, running[0], names.container(names.ROLE_TRAINER))
        return
    with volume_pod(session, cluster, job) as place:
        yield place


def trying(job: Job, spec: RLJobSpec) -> dict[str, Any]:
    """The pod in which the user's rewards and agent are tried: they also read the environment of the job's trainer pods. Raises UserError."""
    body = manifest(job, spec, {})
    (container,) = body["spec"]["containers"]
    own = [variable.dump() for variable in (*spec.env, *spec.trainer.template.env)]
    container["env"] = list({entry["name"]: entry for entry in (*container["env"], *own)}.values())
    container["envFrom"] = list(spec.env_from)
    return body


def manifest(job: Job, spec: RLJobSpec, trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The restricted Pod Security standard admits it. `trainer`: spec of the job's trainer pods, as the operator has made it with the
    administrator's defaults; empty before the job is created and after its children are deleted. Then the job's own spec counts, and the image's
    user. Raises UserError."""
    user = {"runAsNonRoot": True, **spec.pod_security.dump(), "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFETIME,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": trainer.get("imagePullSecrets", list(spec.image_pull_secrets)),
        "tolerations": trainer.get("tolerations", list(spec.trainer.template.tolerations)),
        "securityContext": trainer.get("securityContext", user),
        "containers": [_container(job, spec, trainer)],
        "volumes": [{"name": "rljob-tmp", "emptyDir": {}}, *_volumes(spec, trainer)],
    }
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid}
    metadata: dict[str, Any] = {
        "name": f"{job.name}-shell-{secrets.token_hex(3)}",
        "labels": {LABEL: job.name, names.LABEL_MANAGED_BY: "kubectl-rljob"},
        "ownerReferences": [owner] if job.uid else [],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _volumes(spec: RLJobSpec, trainer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The job's, without those of rljob."""
    own = [{"name": v.name, **v.source} for v in spec.volumes]
    return [v for v in trainer.get("volumes", own) if not v["name"].startswith(OUR_VOLUMES)]


def _container(job: Job, spec: RLJobSpec, trainer: Mapping[str, Any]) -> dict[str, Any]:
    named = names.container(names.ROLE_TRAINER)
    made: Mapping[str, Any] = next(
        (c for c in trainer.get("containers", []) if c["name"] == named), {}
    )  # a webhook may add others
    image = made.get("image") or spec.trainer.template.image or spec.image
    if image is None:
        rule = "its pods are deleted, and its spec names no image" if job.uid else "spec.image is not set"
        raise UserError(f"{job.title}: {rule}", job.command("status") if job.uid else "")
    own = [{"name": v.name, "mountPath": v.mount_path, "readOnly": v.read_only} for v in spec.volumes]
    mounts = [m for m in made.get("volumeMounts", own) if not m["name"].startswith(OUR_VOLUMES)]
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["sleep", str(LIFETIME)],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "rljob"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "rljob-tmp", "mountPath": "/tmp"}, *mounts],
    }


def _until_running(session: Session, cluster: Cluster, namespace: str, name: str) -> None:
    """On standard error what it waits for, whenever that changes."""
    said, deadline = "", time.monotonic() + PATIENCE
    while (pod := cluster.pod(namespace, name))["status"].get("phase") != "Running":
        trouble = _trouble(pod["status"])
        if pod["status"].get("phase") in ("Failed", "Succeeded") or time.monotonic() > deadline:
            raise UserError(f"pod {name} in namespace {namespace} did not start: {trouble or 'the cause is unknown'}")
        if trouble != said:
            session.terminal.tell(f"waiting for pod {name}: {trouble}")
            said = trouble
        time.sleep(POLL)


def _trouble(status: Mapping[str, Any]) -> str:
    """What the scheduler or the kubelet says."""
    waiting = [c["state"].get("waiting", {}) for c in status.get("containerStatuses", []) if "state" in c]
    unscheduled = [c for c in status.get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"]
    found = (*waiting, *unscheduled, status)
    return next((": ".join(x[k] for k in ("reason", "message") if x.get(k)) for x in found if x.get("reason")), "")


def _delete(session: Session, cluster: Cluster, namespace: str, name: str) -> None:
    try:
        cluster.delete_pod(namespace, name)
    except UserError as error:
        command = session.here(f"kubectl delete pod {name} -n {namespace}")
        session.terminal.tell(f"warning: {error}; delete it: {command}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed window, or `kill`, is an interrupt too: the pod is deleted."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
