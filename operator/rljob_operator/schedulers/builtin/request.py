"""The scheduling request of a job: which of its pods lack a node, and which stay where they are."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from rljob_api import names
from rljob_api.policy import DEFAULT_POLICY
from rljob_api.sizing.layout import placed_pods, required_pods
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.status_parts import PodAssignment
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_lost, wanted_ordinals
from rljob_operator.model.scheduling import SchedulingRequest, excluded
from rljob_operator.model.snapshot import Target
from rljob_operator.schedulers.builtin.reservations import remaining
from rljob_operator.times import is_ahead, seconds
from rljob_placement.cluster import Node
from rljob_placement.devices import Claimed
from rljob_placement.gang import Demand, Gang, Stay

EXCLUDED_SECONDS = 600.0
"""Seconds for which a job avoids a node that has refused one of its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The part of a job that scheduling reads."""

    job: RLJobMeta
    spec: RLJobSpec
    suspend: bool
    """spec.suspend of the job's own spec, also where an attempt runs another one."""
    status: JobStatus
    pods: Sequence[Pod]
    now: float
    lifecycle: LifecycleSpec
    """The limits in force, also where an attempt runs another spec."""
    reserve_after: int = DEFAULT_POLICY.reserve_after_seconds
    """Seconds after which a job that waits reserves nodes."""
    claimed: Callable[[], Claimed] = Claimed
    """What the claims of its pods take, asked only for a plan."""


def is_scheduled_here(spec: RLJobSpec | None, status: JobStatus, suspend: bool) -> bool:
    """Whether this operator chooses the nodes of the job's pods, and the job wants pods now. `suspend`: spec.suspend of the job's own spec."""
    if spec is None or not spec.scheduling.facts.assigns_nodes or status.outcome or status.suspended:
        return False
    return not (status.wants_suspend(suspend) or status.is_leaving or status.released_until)


def scheduling_request(
    view: JobView,
    node: Callable[[str], Node | None],
    ordinals: Mapping[str, Sequence[int]] | None = None,
    without: Collection[str] = (),
) -> SchedulingRequest | None:
    """The request of a job; None: every pod has its node. Called in every reconcile of every job, so what only a plan needs is computed last.

    Args:
        ordinals: of the pods that the job wants, as `Target.ahead` has them; None: they follow from the view
        without: pods that need no node
    """
    spec, status = view.spec, view.status
    if not is_scheduled_here(spec, status, view.suspend):
        return None
    wanted = _pod_names(view.job.name, spec, _ordinals(view) if ordinals is None else ordinals)
    assigned = {assignment.pod: assignment for assignment in status.placement.assignments} if status.placement else {}
    current = _current(view, wanted, node)
    everyone = [name for of_role in wanted.values() for name in of_role if name not in without]
    settled = all(name in assigned and assigned[name].node == current.get(name) for name in everyone)
    ranks = {role: _ranks(wanted[role][:size], assigned) for role, size in spec.gang_sizes.items()}
    if settled and all(set(ranks[role]) == set(range(size)) for role, size in spec.gang_sizes.items()):
        return None
    return _request(view, wanted, current, ranks)


def relocation(view: JobView, node: Callable[[str], Node | None], leaving: frozenset[str]) -> SchedulingRequest:
    """What the job would ask for if its pods left these nodes, and no others that it avoids now, whichever scheduler it has."""
    view = replace(view, status=view.status.model_copy(update={"nodes": []}))
    wanted = _pod_names(view.job.name, view.spec, _ordinals(view, leaving))
    current = {pod: there for pod, there in _current(view, wanted, node).items() if there not in leaving}
    request = _request(view, wanted, current, {role: {} for role in view.spec.gang_sizes})
    return replace(request, excluded=request.excluded | leaving)


def _request(
    view: JobView,
    wanted: Mapping[str, Sequence[str]],
    current: Mapping[str, str],
    ranks: Mapping[str, Mapping[int | None, str]],
) -> SchedulingRequest:
    spec = view.spec
    claimed = view.claimed()
    gang = Gang.of(spec, devices=claimed.by_role)
    required = required_names(spec, wanted)
    urgent = any(name not in current for name in required)
    created = set(required) <= {
        pod.name for pod in view.pods
    }  # nobody leaves for pods that a quota or an admission plugin refuses
    stays = {role: _stay(wanted[role][:size], ranks[role], current) for role, size in spec.gang_sizes.items()}
    return SchedulingRequest(
        job=(view.job.namespace, view.job.name),
        uid=view.job.uid,
        created=view.job.creation_timestamp,
        urgent=urgent,
        priority=spec.scheduling.priority,
        preempts=urgent and created and spec.scheduling.preempts and all(pod.preempts for pod in view.pods),
        overdue=urgent and _is_overdue(view),
        gang=gang,
        current=current,
        stay=replace(
            stays.pop(names.ROLE_TRAINER),
            spares=_by_number(wanted[names.ROLE_TRAINER][gang.trainers :], current),
            rollouts=_by_number(wanted.get(names.ROLE_ROLLOUT, ()), current),
            pools={pool.name: _by_number(wanted[pool.name], current) for pool in spec.asked_pools},
            gangs=stays,
        ),
        lasts=remaining(spec, view.lifecycle, view.status, view.now) if urgent else None,
        uncounted=claimed.problem,
        excluded=excluded_nodes(view.status, view.now) | excluded(view.status, view.now),
    )


def _is_overdue(view: JobView) -> bool:
    since = seconds(view.status.placement.waiting_since) if view.status.placement else 0.0
    return 0.0 < since <= view.now - view.reserve_after


def _ranks(pods: Sequence[str], assigned: Mapping[str, PodAssignment]) -> dict[int | None, str]:
    """Assigned pods of a gang, by node rank."""
    return {assigned[name].rank: name for name in pods if name in assigned}


def _stay(pods: Sequence[str], ranks: Mapping[int | None, str], current: Mapping[str, str]) -> Stay:
    """What stays of one gang: all pods with their ranks, or else the pods that have nodes, without ranks."""
    nodes = {rank: current.get(ranks.get(rank, ""), "") for rank in range(len(pods))}
    if all(nodes.values()):
        return Stay(ranks=nodes)
    return Stay(trainers=tuple(current[name] for name in pods if name in current))


def _by_number(pods: Sequence[str], current: Mapping[str, str]) -> dict[int, str]:
    return {i: current[name] for i, name in enumerate(pods) if name in current}


def _ordinals(view: JobView, leaving: Collection[str] = ()) -> dict[str, list[int]]:
    return wanted_ordinals(
        view.status, view.pods, view.spec, view.lifecycle.node_loss_seconds, view.now, leaving, ahead=True
    )


def wanted_names(job: str, wanted: Target) -> dict[str, list[str]]:
    """Names of the pods that need nodes, by role: none for a lost member in whose place a spare will be."""
    return _pod_names(job, wanted.spec, wanted.ahead)


def _pod_names(job: str, spec: RLJobSpec, ordinals: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    return {role: [names.pod(job, role, i) for i in ordinals[role]] for role in placed_pods(spec)}


def required_names(spec: RLJobSpec, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Names, among the wanted ones, of the pods that are placed together or not at all."""
    return [name for role, count in required_pods(spec).items() if count for name in wanted[role][:count]]


def excluded_nodes(status: JobStatus, now: float) -> frozenset[str]:
    """Nodes that have recently refused a pod of the job. `now`: seconds since the epoch."""
    placement = status.placement
    entries = placement.excluded if placement else []
    return frozenset(e.node for e in entries if is_ahead(seconds(e.until), EXCLUDED_SECONDS, now))


def _current(view: JobView, wanted: Mapping[str, Sequence[str]], node: Callable[[str], Node | None]) -> dict[str, str]:
    """Node by pod: where a pod is and stays, or where it is assigned to, as long as that node would still take it."""
    pods = {pod.name: pod for pod in view.pods}
    assigned = (
        {assignment.pod: assignment.node for assignment in view.status.placement.assignments}
        if view.status.placement
        else {}
    )
    demand, avoided = cache(partial(Demand.of, view.spec)), excluded(view.status, view.now)

    def node_of(role: str, name: str) -> str:
        pod = pods.get(name)
        if pod and pod.node and not pod.deleting:
            lost = is_lost(pod, view.lifecycle.node_loss_seconds, view.now)
            return "" if lost or node(pod.node) is None else pod.node
        there = node(assigned.get(name, ""))
        on_its_way = pod is not None and pod.ungated_at is not None and not pod.deleting
        if there is None or (there.name in avoided and not on_its_way):
            return ""
        return "" if demand(role).refuses(there) else there.name

    placed = {name: node_of(role, name) for role, of_role in wanted.items() for name in of_role}
    return {name: where for name, where in placed.items() if where}
