"""Which ordinals of a StatefulSet make up a role.

Rank is not ordinal. A node that is switched off keeps its pod, and with it the pod's name, until the node is back, deleted or tainted out-of-service.
So does a pod that was deleted and cannot die, because its process hangs in the kernel or a finalizer keeps it. Meanwhile the StatefulSet is scaled up
by one, and it is scaled down again between attempts.

The pod that is passed over may still run, and may even train on for a while. Nothing that it does reaches the attempt that goes on without it: the
newer attempt's fence keeps it from committing or pruning checkpoints (checkpoint/fence.py), rollouts that have served the newer attempt refuse its
weights (wire/weights/protocol.py), its ranks find no peers, since ports differ from one attempt to the next, and its metrics are in its own file.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count, islice

from rljob_api.sizing.layout import gang_sizes, pods_of
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.avoided_nodes import excluded
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.spares import members_first


def ordinals(pods: Iterable[Pod], role: str, size: int, node_loss_seconds: float, now: float) -> list[int]:
    """The first `size` ordinals whose pods are not held."""
    held = {p.ordinal for p in pods if p.role == role and is_held(p, node_loss_seconds, now)}
    return list(islice((i for i in count() if i not in held), size))


def server_ordinals(
    status: JobStatus, pods: Iterable[Pod], role: str, size: int, node_loss_seconds: float, now: float
) -> list[int]:
    """Ordinals of rollouts or of a pool. While an attempt is open, servers that are ready are kept, then those that run: when a lost node is back,
    the server that replaced its own stays."""
    pods = [p for p in pods if p.role == role]
    first = ordinals(pods, role, size, node_loss_seconds, now)
    if not is_open(status.attempt):
        return first
    live = [p for p in pods if p.running and not p.deleting and not is_lost(p, node_loss_seconds, now)]
    kept = [p.ordinal for p in sorted(live, key=lambda p: (not p.ready, p.ordinal))][:size]
    return sorted([*kept, *(i for i in first if i not in kept)][:size])


def wanted_ordinals(
    status: JobStatus,
    pods: Sequence[Pod],
    spec: RLJobSpec,
    node_loss_seconds: float,
    now: float,
    leaving: Collection[str] = (),
    ahead: bool = False,
) -> dict[str, list[int]]:
    """Ordinals of the pods that are wanted, by role: of a gang its members, and then its spares.

    Args:
        leaving: nodes to which no member should go, besides excluded ones
        ahead: whether the members of the next attempt are asked for, if the open one has lost some, and there are spares
    """
    gangs, avoided = gang_sizes(spec), excluded(status, now) | set(leaving)
    found = dict[str, list[int]]()
    for role, size in pods_of(spec).items():
        if role in gangs:
            free = ordinals(pods, role, size, node_loss_seconds, now)
            own = [pod for pod in pods if pod.role == role]
            found[role] = members_first(status, own, role, gangs[role], free, avoided, ahead)
        else:
            found[role] = server_ordinals(status, pods, role, size, node_loss_seconds, now)
    return found


def is_held(pod: Pod, node_loss_seconds: float, now: float) -> bool:
    """Whether the pod's name cannot be used again: its node is lost and it may still run there, or it does not end."""
    lost = is_lost(pod, node_loss_seconds, now) and not certainly_dead(pod)
    return lost or is_stuck(pod, node_loss_seconds, now)


def is_stuck(pod: Pod, seconds: float, now: float) -> bool:
    """Whether the pod was deleted, its grace period ended `seconds` ago, and its node answers for as long. One that may be deleted by force is not
    stuck, unless finalizers keep it."""
    since = _overdue_since(pod, now)
    return since is not None and now - since >= seconds and (bool(pod.finalizers) or not certainly_dead(pod))


def _overdue_since(pod: Pod, now: float) -> float | None:
    """Since when the pod should have ended; None: nobody has deleted it. A node that is back gets the same time to end its pods."""
    if not pod.deleting or pod.delete_by is None:
        return None
    return max(pod.delete_by, pod.answers_since) if pod.answers_since <= now else pod.delete_by


def is_lost(pod: Pod, node_loss_seconds: float, now: float) -> bool:
    """Whether the pod's node has been unreachable for nodeLossSeconds."""
    return pod.lost_since is not None and now - pod.lost_since >= node_loss_seconds


def lost_at(pods: Iterable[Pod], node_loss_seconds: float, now: float) -> tuple[float, ...]:
    """When pods on unreachable nodes will count as lost, and deleted ones as stuck, in seconds since the epoch. No event tells, so a reconcile is
    due then."""
    since = (t for p in pods for t in (p.lost_since, _overdue_since(p, now)) if t is not None)
    return tuple(t + node_loss_seconds for t in since if t + node_loss_seconds > now)


def certainly_dead(pod: Pod) -> bool:
    """Whether nothing of the pod can be running: its node does not exist any more, or has the out-of-service taint. Only then may it be deleted by
    force."""
    return pod.lost_since == 0.0 or (pod.lost_since is not None and pod.out_of_service)
