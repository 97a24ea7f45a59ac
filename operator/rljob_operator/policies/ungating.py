"""Which gated pods are released, to the nodes that they are assigned to or to another scheduler: a gang's together, and those of a server of several
pods together.
"""

from collections.abc import Iterator, Sequence

from rljob_api import names
from rljob_api.status import JobStatus
from rljob_api.status_parts import PlacementStatus
from rljob_operator.model.ordinals import target
from rljob_operator.model.snapshot import Server, Snapshot, Target, is_open
from rljob_operator.policies.change import Ungate
from rljob_operator.schedulers.builtin.request import required_names
from rljob_operator.times import backoff, is_backing_off


def retry_at(s: Snapshot, pod: str) -> float:
    """When a pod of this name may start again after those that its kubelet has failed, in seconds since the epoch; 0: at once. Otherwise a node that
    admits no pod of the job, as one with a broken GPU, would get the next one within a second, for ever."""
    last = s.failed.get(pod)
    if last is None or not last.times:
        return 0.0
    until = last.at + backoff(s.lifecycle.backoff_seconds, last.times)
    return until if is_backing_off(until, s.now) else 0.0


def retries(s: Snapshot) -> list[float]:
    """When gated pods may be released that must not be yet."""
    gated = (retry_at(s, p.name) for p in s.pods if names.GATE in p.gates)
    return [at for at in gated if at]


def released_to_others(s: Snapshot, status: JobStatus) -> Iterator[Ungate]:
    """Gated pods of other schedulers that the job needs: trainers with all spares, and servers of several pods when all pods of one exist."""
    gated = {p.name: p for p in s.pods if names.GATE in p.gates and not p.deleting and not retry_at(s, p.name)}
    current = target(s, status) if gated else None
    if current is None or current.spec.scheduling.facts.assigns_nodes or status.outcome or status.suspended:
        return
    trainers = (names.pod(s.job.name, names.ROLE_TRAINER, i) for i in current.ordinals[names.ROLE_TRAINER])
    yield from (Ungate(gated[name]) for name in trainers if name in gated)
    for pods in _startable(s, status, current):
        yield from (Ungate(gated[name], head=rank == 0) for rank, name in enumerate(pods) if name in gated)


def _startable(s: Snapshot, status: JobStatus, current: Target) -> Iterator[list[str]]:
    """Pods of servers of several pods that may go to their nodes, by rank. Those beyond the ones that the job needs come with the attempt: a
    scheduler that counts the pods of a gang would take them for these."""
    released = {(one.role, one.index) for one in status.servers if one.released_until}
    there = {pod.name for pod in s.pods if not pod.deleting}
    wanted = {role: [names.pod(s.job.name, role, i) for i in ordinals] for role, ordinals in current.ordinals.items()}
    required = set(required_names(current.spec, wanted))
    for server in current.servers:
        pods = _pods(s, server)
        needed = is_open(status.attempt) or required.issuperset(pods)
        if needed and there.issuperset(pods) and (server.role, server.index) not in released:
            yield pods


def _pods(s: Snapshot, server: Server) -> list[str]:
    return [names.pod(s.job.name, server.role, ordinal) for ordinal in server.ordinals]


def assigned_pods(
    s: Snapshot, status: JobStatus, placement: PlacementStatus, required: Sequence[str]
) -> Iterator[Ungate]:
    """Gated pods to release to their nodes: all at once when every pod that the gang cannot do without (`required`) has an assignment. A server that
    joins an open attempt needs only those of its own pods."""
    nodes = {x.pod: x.node for x in placement.assignments}
    whole, current = not placement.problem and nodes.keys() >= set(required), target(s, status)
    servers = [_pods(s, server) for server in current.servers] if current else []
    parts = {name: pods for pods in servers for name in pods}
    for pod in s.pods:
        alone = not names.is_model_role(pod.role) and is_open(s.status.attempt)
        free = whole or (alone and all(name in nodes for name in parts.get(pod.name, ())))
        waits = names.GATE in pod.gates and not pod.deleting and not retry_at(s, pod.name)
        if free and waits and pod.name in nodes:
            yield Ungate(pod, nodes[pod.name], head=pod.name in parts and parts[pod.name][0] == pod.name)
