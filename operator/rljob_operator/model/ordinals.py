"""Which ordinals of a StatefulSet make up a role, and each server of several pods; which pods of a gang with spares are its members.

Rank is not ordinal. A node that is switched off keeps its pod, and with it the pod's name, until the node is back, deleted or tainted out-of-service.
So does a pod that was deleted and cannot die, because its process hangs in the kernel or a finalizer keeps it. Meanwhile the StatefulSet is scaled up
by one, and it is scaled down again between attempts, unless there are spares: then the running pods stay, and those of lower ordinals that are not
wanted as spares hold no nodes (policies/pods.py).

The pod that is passed over may still run, and may even train on for a while. Nothing that it does reaches the attempt that goes on without it: the
newer attempt's fence keeps it from committing or pruning checkpoints (checkpoint/fence.py), rollouts that have served the newer attempt refuse its
weights (wire/weights/protocol.py), its ranks find no peers, since ports differ from one attempt to the next, and its metrics are in its own file.

While an attempt runs, its members stay, and its spares stand by. The next one opens with as many of them as are left, and with
the oldest of the other pods that run: the spares, which have loaded their imports, and not the pods that replace the lost ones. A pod that cannot
start is chosen last. Nothing of this is stored: it follows from the last attempt and from the pods.

Nor is it in a server, which keeps its pods for its whole life; one whose name is held is replaced by the lowest
ordinal that is free, at the same rank. Scaling down ends the servers of the highest ordinals, so that the StatefulSet can shrink; while an attempt is
open, those that are not whole go before them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count, islice

from rljob_api import names
from rljob_api.server_group import ServerGroup
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_api.status_parts import ServerStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.scheduling import excluded
from rljob_operator.model.snapshot import Server, Snapshot, Target, is_open


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

    def preference(ordinal: int) -> tuple[bool, bool, bool, float]:
        pod = there.get(ordinal)
        if pod is None:
            return True, True, True, 0.0
        return pod.uid not in fit, pod.uid not in uids, not pod.running, pod.created

    if size < len(free):
        usable = (i for i, pod in there.items() if pod.uid in fit and (pod.running or pod.uid in uids))
        stay = sorted(usable, key=lambda i: (there[i].uid not in uids, i))
        free = list(dict.fromkeys([*stay, *free]))[: len(free)]
    members = sorted(sorted(free, key=preference)[:size])
    return [*members, *(i for i in free if i not in members)]


def is_unfit(pod: Pod, avoided: Collection[str]) -> bool:
    """Whether the pod can be no member as it is: it ends, its node does not answer or is avoided, or it does not start."""
    gone = pod.deleting or pod.lost_since is not None or pod.phase in ("Failed", "Succeeded")
    fails = not pod.running and bool(pod.waiting or pod.exited or pod.unschedulable)
    return gone or fails or pod.node in avoided


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


def target(s: Snapshot, status: JobStatus) -> Target | None:
    """What the open attempt has, or the next one will have; None: the job has no valid spec. Computed once for each attempt of a snapshot, since most
    policies ask for it."""
    spec = s.spec_of(status.attempt)
    if spec is None:
        return None
    last = s.targets[-1] if s.targets else None
    of = (status.attempt, status.nodes, status.servers, status.worker_replicas)
    if last is None or last.spec is not spec or any(a is not b for a, b in zip(last.status, of, strict=True)):
        limit = s.lifecycle.node_loss_seconds
        servers = [one for of_role in divided(status, s.pods, spec, limit, s.now).values() for one in of_role]
        wanted = wanted_ordinals(status, s.pods, spec, limit, s.now)
        spares = spec.scheduling.spare_nodes
        ahead = wanted_ordinals(status, s.pods, spec, limit, s.now, ahead=True) if spares else wanted
        last = Target(spec, wanted, ahead, servers, of)
        s.targets.append(last)
    return last


def sizes(status: JobStatus, spec: RLJobSpec) -> Mapping[str, int]:
    """Pods that the job wants now, by role: of workers as many as their calls need, where these decide."""
    scaled = {role: workers for role, workers in spec.workers.items() if workers.autoscaling}
    if not scaled:
        return spec.pod_counts
    return {**spec.pod_counts} | {role: w.bounded(status.worker_replicas.get(role, 0)) for role, w in scaled.items()}


def gateway_pod(s: Snapshot, status: JobStatus) -> Pod | None:
    """The pod that is to serve a service's clients; None: there is none now."""
    current = target(s, status)
    wanted = current.ordinals.get(names.ROLE_GATEWAY, []) if current else []
    pods = (p for p in s.of(names.ROLE_GATEWAY) if p.ordinal in wanted and p.running and p.ip and not p.deleting)
    return next((p for p in pods if p.lost_since is None), None)


def divided(
    status: JobStatus, pods: Sequence[Pod], spec: RLJobSpec, node_loss_seconds: float, now: float
) -> dict[str, list[Server]]:
    """Servers of several pods, by role."""
    servers = dict[str, list[Server]]()
    for role, size in spec.pod_counts.items():
        nodes = server_nodes(spec, role)
        if nodes > 1:
            held = {p.ordinal for p in pods if p.role == role and is_held(p, node_loss_seconds, now)}
            kept = None if is_open(status.attempt) else ordinals(pods, role, size, node_loss_seconds, now)
            servers[role] = divide(status.servers, role, (size // nodes, nodes), held, kept)
    return servers


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
    gangs, avoided = spec.gang_sizes, excluded(status, now) | set(leaving)
    servers = divided(status, pods, spec, node_loss_seconds, now)
    wanted = dict[str, list[int]]()
    for role, size in sizes(status, spec).items():
        if role in gangs:
            free = ordinals(pods, role, size, node_loss_seconds, now)
            own = [pod for pod in pods if pod.role == role]
            wanted[role] = members_first(status, own, role, gangs[role], free, avoided, ahead)
        elif role in servers:
            wanted[role] = [i for one in servers[role] for i in one.ordinals]
        else:
            wanted[role] = server_ordinals(status, pods, role, size, node_loss_seconds, now)
    return wanted


def is_held(pod: Pod, node_loss_seconds: float, now: float) -> bool:
    """Whether the pod's name cannot be used again: its node is lost and it may still run there, or it does not end."""
    lost = is_lost(pod, node_loss_seconds, now) and not certainly_dead(pod)
    return lost or is_stuck(pod, node_loss_seconds, now)


def frees_its_node(s: Snapshot, pod: Pod) -> bool:
    """Whether the pod holds a node, and would let it go if it was deleted."""
    return bool(pod.node) and not pod.deleting and not is_held(pod, s.lifecycle.node_loss_seconds, s.now)


def is_stuck(pod: Pod, seconds: float, now: float) -> bool:
    """Whether the pod was deleted, its grace period ended `seconds` ago, and its node answers for as long. One that may be deleted by force is not
    stuck, unless finalizers keep it."""
    since = _overdue_since(pod, now)
    return since is not None and now - since >= seconds and (bool(pod.finalizers) or not certainly_dead(pod))


def _overdue_since(pod: Pod, now: float) -> float | None:
    """Since when the pod should have ended; None: nobody has deleted it. A node that was lost and is back gets the same time to end its pods."""
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


def divide(
    known: Iterable[ServerStatus], role: str, size: tuple[int, int], held: Collection[int], kept: Collection[int] | None
) -> list[Server]:
    """The servers of a role, and the ordinals of their pods by rank.

    Args:
        known: servers of the status
        size: number of servers, and of pods of each
        held: ordinals that cannot be used
        kept: ordinals that stay if they are not held; None: all, since an attempt is open
    """
    servers, nodes = size
    stay = [one for one in known if one.role == role and len(one.ordinals) == nodes]
    stay = sorted(stay, key=lambda one: (kept is None and not one.parts, max(one.ordinals)))[:servers]
    places = {
        one.index: [i if i not in held and (kept is None or i in kept) else -1 for i in one.ordinals] for one in stay
    }
    fresh = (index for index in count() if index not in places)
    for _ in range(servers - len(stay)):
        places[next(fresh)] = [-1] * nodes
    taken = {i for ordinals in places.values() for i in ordinals}
    free = (i for i in count() if i not in taken and i not in held)
    return [
        Server(role, index, tuple(next(free) if i < 0 else i for i in ordinals)) for index, ordinals in places.items()
    ]


def group(job: str, server: ServerStatus) -> ServerGroup:
    """What its pods and the trainer are to know of the generation that runs."""
    return ServerGroup(
        name=names.server(job, server.role, server.index),
        generation=server.generation,
        parts=server.parts,
        master_port=names.server_port(server.generation),
        rpc_port=names.server_rpc_port(server.generation),
    )


def answering_head(s: Snapshot, server: ServerStatus) -> Pod | None:
    """The pod that answers for the server, if all of its pods are there; None: it cannot be asked."""
    pods = [s.pod(part) for part in server.parts]
    whole = bool(pods) and all(p and p.running and not p.deleting and p.lost_since is None for p in pods)
    return pods[0] if whole and pods[0] and pods[0].ready and pods[0].ip else None
