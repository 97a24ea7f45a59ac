"""What somebody can do with the token of a job's pod: kubectl with that token and nothing else, and a list of trials."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.kube import CommandFailed, Kube
from rljob_api import names

OWN_REPORT = '{"data":{"intruder":"was here"}}'
OTHER_THAN_DATA = (
    '{"metadata":{"labels":{"rljob.dev/job":"another"}}}',
    '{"metadata":{"annotations":{"intruder":"was here"}}}',
    '{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"intruder","uid":"intruder"}]}}',
    '{"metadata":{"finalizers":["intruder.example/holds"]}}',  # the job's objects could never be collected
    '{"binaryData":{"binary":"AA=="}}',
    '{"immutable":true}',  # the pod's successors could never report
)
"""Changes of a pod's own report that are none of its business."""


@dataclass(frozen=True)
class Trial:
    """One kubectl command, and whether it may work."""

    command: tuple[str, ...]
    allowed: bool

    def __str__(self) -> str:
        return " ".join(self.command)


def as_pod(kube: Kube, pod: str, directory: Path) -> Kube:
    """With a token like that which is mounted into this very pod."""
    found = kube.get("pod", pod)
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}", f"--bound-object-uid={found['metadata']['uid']}")
    token = kube.kubectl("create", "token", found["spec"]["serviceAccountName"], *bound).strip()
    config = json.loads(kube.run("kubectl", "config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = directory / f"{pod}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return Kube(path, kube.namespace, kube.path)


def trials(job: str, pod: str, peer: str, stranger: str, token: str) -> Iterator[Trial]:
    """For `pod` of `job`; `peer` is another of its pods, `stranger` another job of the namespace, `token` the Secret of the job."""
    control, own, others = names.control(job), names.report(pod), names.report(peer)
    yield from _of("configmap", ("get",), (control, own, others), allowed=True)
    yield Trial(("patch", "configmap", own, "-p", OWN_REPORT), allowed=True)
    for change in OTHER_THAN_DATA:
        yield Trial(("patch", "configmap", own, "-p", change), allowed=False)
    for name in (others, control, names.control(stranger)):
        yield Trial(("patch", "configmap", name, "-p", OWN_REPORT), allowed=False)
    yield from _of("configmap", ("get",), (names.control(stranger), "kube-root-ca.crt"), allowed=False)
    yield from _of("configmap", ("delete",), (control, own, others), allowed=False)
    yield Trial(("create", "configmap", "new", "--from-literal=a=b"), allowed=False)
    yield from _of("secret", ("get", "delete"), (token,), allowed=False)
    yield from _of("rljob", ("get", "delete"), (job, stranger), allowed=False)
    yield from _of("pod", ("get", "delete"), (pod, peer), allowed=False)
    for kind in ("configmaps", "secrets", "pods", "nodes", "rljobs", "statefulsets"):
        yield Trial(("get", kind), allowed=False)
    yield Trial(("create", "token", names.pods(job)), allowed=False)
    yield Trial(("create", "token", "default"), allowed=False)
    yield Trial(("get", "configmap", control, "-n", "kube-system"), allowed=False)


def _of(kind: str, verbs: tuple[str, ...], objects: tuple[str, ...], allowed: bool) -> Iterator[Trial]:
    for verb in verbs:
        for name in objects:
            yield Trial((verb, kind, name), allowed)


def outcome(kube: Kube, trial: Trial) -> str:
    """`allowed`, or `403`, or whatever else was the answer."""
    try:
        kube.kubectl(*trial.command)
    except CommandFailed as failed:
        return "403" if "forbidden" in str(failed).lower() else str(failed)
    return "allowed"
