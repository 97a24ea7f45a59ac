"""Which ports of a job's pods another pod reaches: every one on which they take connections is tried."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.job import Job
from e2e.kube import Kube, Object

STRANGER = "stranger"
"""A pod without labels that does nothing."""

LISTENING = """
import json, pathlib
rows = [row.split() for file in ("tcp", "tcp6") for row in pathlib.Path("/proc/net", file).read_text().splitlines()[1:]]
ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and not row[1].startswith("0100007F")}
print(json.dumps(sorted(ports)))
"""
"""Ports on which a pod takes connections from others."""

REACH = """
import concurrent.futures, json, socket
def reached(target):
    try:
        socket.create_connection(target, timeout=3).close()
    except OSError:
        return False
    return True
targets = {targets}
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    print(json.dumps([name for name, yes in zip(targets, pool.map(reached, targets.values())) if yes]))
"""

Targets = dict[str, tuple[str, int]]
"""Address and port by pod and port, such as `job-trainer-0:29500`."""


def listening(*jobs: Job) -> Targets:
    """Every port of all pods of these jobs: gateways, rollout servers, rendezvous, gloo."""
    found: Targets = {}
    for job in jobs:
        for pod in job.pods():
            name, address = pod["metadata"]["name"], pod["status"]["podIP"]
            found |= {f"{name}:{port}": (address, int(port)) for port in _python(job.kube, name, LISTENING)}
    return found


def reached(kube: Kube, pod: str, targets: Targets) -> set[str]:
    """Names of those to which this pod can connect within 3 s."""
    return set(_python(kube, pod, REACH.replace("{targets}", json.dumps(targets))))


@contextmanager
def strangers(kube: Kube, elsewhere: str, image: str) -> Iterator[Kube]:
    """One in the namespace, and one in the new namespace `elsewhere`, which is given back."""
    other = Kube(kube.kubeconfig, elsewhere, kube.path)
    other.kubectl("create", "namespace", elsewhere)
    try:
        for one in (kube, other):
            _start_stranger(one, image)
        yield other
    finally:
        kube.kubectl("delete", "pod", STRANGER, "--wait=false", "--ignore-not-found")
        other.kubectl("delete", "namespace", elsewhere, "--timeout=120s", timeout=150)


def _start_stranger(kube: Kube, image: str) -> None:
    security = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 65532}
    container = {"name": "c", "image": image, "command": ["sleep", "infinity"], "securityContext": security}
    spec: Object = {"containers": [container], "terminationGracePeriodSeconds": 0}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": STRANGER}, "spec": spec})
    kube.kubectl("wait", "pod", STRANGER, "--for=condition=Ready", "--timeout=120s", timeout=150)


def _python(kube: Kube, pod: str, program: str) -> list[str]:
    found: list[str] = json.loads(kube.execute(pod, "python", "-c", program, timeout=120).splitlines()[-1])
    return found
