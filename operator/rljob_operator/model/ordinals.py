"""Which ordinals of a StatefulSet make up a role. Rank is not ordinal: a node that is switched off keeps its pod, and with it the pod's name,
until the node is back, deleted or tainted out-of-service. The set then grows by one, and shrinks again between attempts."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice

from rljob_api import names
from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.effective_spec import is_open


def ordinals(pods: Iterable[Pod], role: str, size: int, node_loss_seconds: float, now: float) -> list[int]:
    """The first `size` that no lost node holds."""
    held = {p.ordinal for p in pods if p.role == role and is_held(p, node_loss_seconds, now)}
    return list(islice((i for i in count() if i not in held), size))


def member_ordinals(
    status: JobStatus, pods: Iterable[Pod], role: str, size: int, node_loss_seconds: float, now: float
) -> list[int]:
    """Of the trainer or of another gang. An open attempt keeps its members."""
    attempt = status.attempt
    if attempt and is_open(attempt) and (members := attempt.of(role)):
        return sorted(int(m.pod.rpartition("-")[2]) for m in members)
    return ordinals(pods, role, size, node_loss_seconds, now)


def server_ordinals(
    status: JobStatus, pods: Iterable[Pod], role: str, size: int, node_loss_seconds: float, now: float
) -> list[int]:
    """Of rollouts or of a pool. While an attempt is open those that serve stay, then those that run: a node that is back does not cost the
    replacement of its server."""
    pods = [p for p in pods if p.role == role]
    first = ordinals(pods, role, size, node_loss_seconds, now)
    if not is_open(status.attempt):
        return first
    live = [p for p in pods if p.running and not p.deleting and not is_lost(p, node_loss_seconds, now)]
    kept = [p.ordinal for p in sorted(live, key=lambda p: (not p.ready, p.ordinal))][:size]
    return sorted([*kept, *(i for i in first if i not in kept)][:size])


def wanted_ordinals(
    status: JobStatus, pods: Sequence[Pod], sizes: Mapping[str, int], node_loss_seconds: float, now: float
) -> dict[str, list[int]]:
    """By role. `sizes`: pods of each role."""
    return {
        role: (member_ordinals if names.is_model_role(role) else server_ordinals)(
            status, pods, role, size, node_loss_seconds, now
        )
        for role, size in sizes.items()
    }


def is_held(pod: Pod, node_loss_seconds: float, now: float) -> bool:
    """Its node is lost, and nobody says that nothing runs there."""
    return is_lost(pod, node_loss_seconds, now) and not certainly_dead(pod)


def is_lost(pod: Pod, node_loss_seconds: float, now: float) -> bool:
    """Its node has been silent for too long."""
    return pod.lost_since is not None and now - pod.lost_since >= node_loss_seconds


def lost_at(pods: Iterable[Pod], node_loss_seconds: float, now: float) -> tuple[float, ...]:
    """When those on silent nodes will count as lost: nothing else happens at that moment."""
    until = (p.lost_since + node_loss_seconds for p in pods if p.lost_since is not None)
    return tuple(t for t in until if t > now)


def certainly_dead(pod: Pod) -> bool:
    """Only then may a pod be deleted by force: its node does not exist any more, or the out-of-service taint vouches for it."""
    return pod.lost_since == 0.0 or (pod.lost_since is not None and pod.out_of_service)
