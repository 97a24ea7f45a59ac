"""Which pods of a gang with spares are its members, and which stand by.

While an attempt runs, its members stay. The next one opens with as many of them as are left, and with the oldest of the other pods: the spares, which
have loaded their imports, and not the pods that replace the lost ones. A pod that cannot start is chosen last. Nothing of this is stored: it follows
from the last attempt and from the pods.
"""

from collections.abc import Collection, Iterable

from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.effective_spec import is_open


def members_first(
    status: JobStatus, pods: Iterable[Pod], role: str, size: int, free: list[int], avoided: Collection[str], ahead: bool
) -> list[int]:
    """The `size` ordinals of the members, and then those of the spares.

    Args:
        pods: pods of the role
        free: ordinals that are not held, as many as there are members and spares
        avoided: nodes to which none of the job's pods should go
        ahead: whether the members of the next attempt are asked for, if the open one has lost some
    """
    there = {pod.ordinal: pod for pod in pods}
    before = status.attempt.of(role) if status.attempt else []
    uids, fit = {m.pod_uid for m in before}, {pod.uid for pod in there.values() if not is_unfit(pod, avoided)}
    keeps = size == len(free) or not ahead or uids <= fit  # without spares, the lost members themselves come back
    if before and is_open(status.attempt) and keeps:
        members = sorted(int(m.pod.rpartition("-")[2]) for m in before)
        warm = sorted(i for i, pod in there.items() if pod.running and i not in members and pod.uid in fit)
        rest = dict.fromkeys([*warm, *(i for i in free if i not in members)])
        return [*members, *list(rest)[: len(free) - size]]

    def preference(ordinal: int) -> tuple[bool, bool, float]:
        pod = there.get(ordinal)
        return (True, True, 0.0) if pod is None else (pod.uid not in fit, pod.uid not in uids, pod.created)

    members = sorted(sorted(free, key=preference)[:size])
    return [*members, *(i for i in free if i not in members)]


def is_unfit(pod: Pod, avoided: Collection[str]) -> bool:
    """Whether the pod can be no member as it is: it ends, its node does not answer or is avoided, or it does not start."""
    gone = pod.deleting or pod.lost_since is not None or pod.phase in ("Failed", "Succeeded")
    fails = not pod.running and bool(pod.waiting or pod.exited or pod.unschedulable)
    return gone or fails or pod.node in avoided
