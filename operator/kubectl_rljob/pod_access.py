"""Connections to pods: `kubectl exec` and `port-forward`, since every user of a kubectl plugin has kubectl. And a temporary pod, owned by the user,
with a job's volumes: to read what the job wrote, also after it has ended."""

import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubectl_rljob.cluster import ClusterClient, Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session
from rljob_api import names
from rljob_api.rules.volumes import OUR_VOLUMES
from rljob_api.spec import RLJobSpec

ABSENT = 100
"""Exit code of a command whose file is not there."""
EXITED = "command terminated with exit code"
"""What `kubectl exec` writes after a command that failed."""


class NotThere(Exception):
    """The file or directory that a command would have read."""


def interact(session: Session, place: Place, command: Sequence[str]) -> int:
    """Run the command in the pod with our own input and output. Returns its exit code."""
    terminal = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--stdin"]
    with _program():
        return subprocess.run(_exec(session, place, terminal, command)).returncode


def feed(session: Session, place: Place, command: Sequence[str], text: str) -> int:
    """Run the command in the pod with a text as its input, and our own output. Returns its exit code."""
    with _program():
        return subprocess.run(_exec(session, place, ["--stdin"], command), input=text.encode()).returncode


def complaints(session: Session, place: Place, command: Sequence[str], text: str) -> list[str]:
    """Likewise, but what it writes to standard error is returned, line by line, without the line that kubectl adds."""
    with _program():
        ended = subprocess.run(_exec(session, place, ["--stdin"], command), input=text.encode(), stderr=subprocess.PIPE)
    said = ended.stderr.decode(errors="replace").splitlines()
    return [line for line in said if not line.startswith(EXITED)]


def read(session: Session, place: Place, command: Sequence[str], path: Path) -> Iterator[bytes]:
    """What the command, which gets the path as its last argument, writes to its standard output, as it comes. Raises NotThere, and UserError when
    it fails."""
    script = f'test -e "$0" || exit {ABSENT}; exec "$@" "$0"'
    arguments = _exec(session, place, [], ["sh", "-c", script, str(path), *command])
    with _program(), subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        while piece := process.stdout.read(65536):
            yield piece
        problem = process.stderr.read().decode(errors="replace").strip()
    if process.returncode == ABSENT:
        raise NotThere(path)
    if process.returncode:
        raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")


def read_text(session: Session, place: Place, command: Sequence[str], path: Path) -> str:
    """All of what `read` gives. Raises as it does."""
    return b"".join(read(session, place, command, path)).decode(errors="replace")


@contextmanager
def serving(session: Session, place: Place, command: Sequence[str], ready: str) -> Iterator[None]:
    """Run the command in the pod until the context ends, which begins when a line of it holds `ready`. Raises UserError when it ends before."""
    arguments = _exec(session, place, [], command)
    with (
        _program(),
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if ready in line:
                    break
            else:
                raise UserError(f"pod {place.pod} in namespace {place.namespace}: {''.join(said[-3:]).strip()}")
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
            yield
        finally:
            process.terminate()


def forward(session: Session, place: Place, here: int, there: int) -> str:
    """Connect a port of this machine to one of the pod, until kubectl ends. Returns what it said last."""
    arguments = [*_kubectl(session, place), "port-forward", place.pod, f"{here}:{there}"]
    with _program():
        ended = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return ended.stderr.strip() or "the connection was closed"


def _exec(session: Session, place: Place, flags: Sequence[str], command: Sequence[str]) -> list[str]:
    return [*_kubectl(session, place), "exec", *flags, f"--container={place.container}", place.pod, "--", *command]


def _kubectl(session: Session, place: Place) -> list[str]:
    chosen = {
        "--kubeconfig": session.kubeconfig,
        "--context": session.context,
        "--as": session.user,
        "--namespace": place.namespace,
    }
    return ["kubectl", *(f"{flag}={value}" for flag, value in chosen.items() if value)]


@contextmanager
def _program() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError("kubectl is not on PATH", "kubectl version --client") from error


LABEL = f"{names.GROUP}/shell"
CONTAINER = "shell"
LIFETIME = 8 * 3600
"""Seconds after which the pod ends, if nobody was left to delete it."""
PATIENCE, POLL = 300.0, 1.0
"""Seconds to wait for the pod to run, and between polls."""
CREATING = "ContainerCreating"
"""What a pod says of itself while its volumes are mounted. Why they cannot be, only its events say."""


@contextmanager
def volume_pod(session: Session, cluster: ClusterClient, job: Job) -> Iterator[Place]:
    """A container that runs until the context ends. Raises UserError."""
    body = manifest(job, job.readable_spec(), cluster.pod_spec(job, names.ROLE_TRAINER))
    with temporary(session, cluster, job.namespace, body) as place:
        yield place


@contextmanager
def temporary(session: Session, cluster: ClusterClient, namespace: str, body: dict[str, Any]) -> Iterator[Place]:
    """The pod `body`, from `manifest`, until the context ends. Raises UserError."""
    with _ended_by_signals():
        name = cluster.create_pod(namespace, body)
        try:
            _until_running(session, cluster, namespace, name)
            yield Place(namespace, name, CONTAINER)
        finally:
            _delete(session, cluster, namespace, name)


@contextmanager
def reading_pod(session: Session, cluster: ClusterClient, job: Job) -> Iterator[Place]:
    """A container that has the job's volumes: a trainer's that runs, or else one that is made for it. Raises UserError."""
    running = cluster.pods(job, names.ROLE_TRAINER, running=True)
    if running:
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


def _until_running(session: Session, cluster: ClusterClient, namespace: str, name: str) -> None:
    """On standard error what it waits for, whenever that changes."""
    said, deadline = "", time.monotonic() + PATIENCE
    while True:
        pod = cluster.pod(namespace, name)
        if pod["status"].get("phase") == "Running":
            return
        trouble = _trouble(pod["status"])
        if trouble == CREATING:
            trouble = _warning(cluster, namespace, pod) or trouble
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
    states = (*waiting, *unscheduled, status)
    return next((": ".join(x[k] for k in ("reason", "message") if x.get(k)) for x in states if x.get("reason")), "")


def _warning(cluster: ClusterClient, namespace: str, pod: Mapping[str, Any]) -> str:
    """The pod's last warning; empty: there is none, or the user may not read events."""
    try:
        events = cluster.pod_events(namespace, pod)
    except UserError:
        return ""
    warnings = [event for event in events if event.get("type") == "Warning"]
    last = max(warnings, key=lambda event: event.get("lastTimestamp") or "", default={})
    return ": ".join(last[key] for key in ("reason", "message") if last.get(key))


def _delete(session: Session, cluster: ClusterClient, namespace: str, name: str) -> None:
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
