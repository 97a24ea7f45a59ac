"""Sandboxes are used once. One whose container has ended is replaced by another pod, whoever ended it: the agent that gave it back, the driver that
had claimed it and is gone, or the kernel for lack of memory. So nobody has to remember a claim, and none outlives what made it.

The kubelet starts the container again in the old pod. What it left there (shared memory, the volumes of the pod) is no clean start, so that life is
given to nobody (render/channel.py).
"""

from rljob_api import names
from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change
from rljob_operator.times import is_ahead

LEAST_SECONDS = 10.0
"""Age at which a pod is replaced, at least: an image in which the helper cannot run would otherwise cost a pod at a time, without end."""


def replace_sandboxes(s: Snapshot, status: JobStatus) -> Change:
    used = [pod for pod in s.servers if names.is_sandbox_role(pod.role) and pod.exited and not pod.deleting]
    young = [pod for pod in used if is_ahead(_due(pod), LEAST_SECONDS, s.now)]
    due = tuple(sorted({_due(pod) for pod in young})[:1])
    return Change(status, due=due, delete=tuple(pod for pod in used if pod not in young))


def _due(pod: Pod) -> float:
    return pod.created + LEAST_SECONDS
