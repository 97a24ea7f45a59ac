"""Sandboxes are used once. One whose container has ended is replaced by another pod, whoever ended it: the agent that gave it back, the driver that
had claimed it and is gone, or the kernel for lack of memory. So nobody has to remember a claim, and none outlives what made it.

The kubelet starts the container again in the old pod. What it left there (shared memory, the volumes of the pod) is no clean start, so that life is
given to nobody (render/channel.py).

A claim ends after claimSeconds, by the driver. One whose container still does not end then is held by what its program did, and is replaced, too.
"""

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change
from rljob_operator.times import is_ahead

LEAST_SECONDS = 10.0
"""Age at which a pod is replaced, at least: an image in which the helper cannot run would otherwise cost a pod at a time, without end."""
STUCK_SECONDS = 60.0
"""After claimSeconds, in which a helper that runs has ended: silence, which it notices after 30 s, included."""


def replace_sandboxes(s: Snapshot, status: JobStatus) -> Change:
    pods = [pod for pod in s.servers if names.is_sandbox_role(pod.role) and not pod.deleting]
    spec = s.spec_of(status.attempt)
    later, delete = [], []
    for pod in pods:
        if pod.exited and not is_ahead(_due(pod), LEAST_SECONDS, s.now):
            delete.append(pod)
        elif pod.exited:
            later.append(_due(pod))
        elif spec and (stuck := _stuck(pod, spec)) is not None:
            delete += [pod] if stuck <= s.now else []
            later += [stuck] if stuck > s.now else []
    return Change(status, due=tuple(sorted(later)[:1]), delete=tuple(delete))


def _due(pod: Pod) -> float:
    return pod.created + LEAST_SECONDS


def _stuck(pod: Pod, spec: RLJobSpec) -> float | None:
    """When no claim can hold it any more; None: none holds it."""
    number = int(pod.role.removeprefix(names.ROLE_SANDBOX))
    if not pod.running or pod.unready_since is None or number >= len(spec.environments):
        return None
    return pod.unready_since + spec.environments[number].claim_seconds + STUCK_SECONDS
