"""Assignments of pods to nodes and ranks, with the `builtin` backend. They are in the status before any pod is ungated (see schedulers/builtin/).

The reasons why pods did not get onto their nodes are those of all nodes together, so that the message does not change with each node.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rljob_api import names, reasons
from rljob_api.sizing.layout import placed_pods, required_pods
from rljob_api.status import JobStatus
from rljob_api.status_parts import Exclusion, PlacementStatus, PodAssignment
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import target
from rljob_operator.model.refused_pods import dispensable_pods, lacks_pods
from rljob_operator.model.scheduling import SchedulingResult
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.ungating import assigned_pods, released_to_others, retries
from rljob_operator.schedulers.builtin.request import (
    EXCLUDED_SECONDS,
    excluded_nodes,
    is_scheduled_here,
    required_names,
    wanted_names,
)
from rljob_operator.times import seconds, stamp

LONGEST, MOST = 200, 3
"""Longest reason, in characters, and most reasons in a message."""
SILENT = "the scheduler does not say why"
ALL_NODES = re.compile(r"0/\d+ nodes are available: (.*?)\.( |$)")
"""The scheduler's message, in which it counts the nodes by why they are out."""
COUNTED = re.compile(r"\d+ (.+?)(?=, \d+ |$)")
"""One reason in it, behind its count."""
ON_NO_NODE = re.compile(r"0/\d+ nodes are available: (\D.*?)\.( |$)")
"""The scheduler's message about a pod that fits no node at all, for example because its claim does not exist: it has no counts."""
PINNED = re.compile(r"node affinity/selector|prefilter result|didn't satisfy plugin")
"""Reasons that it gives for every node but the one that the pod is pinned to."""


def refusal_reason(unschedulable: str) -> str:
    """Why the node did not take one pod, from the scheduler's message about it."""
    listed = ALL_NODES.match(unschedulable)
    counted = COUNTED.findall(listed[1]) if listed else []
    own = [one for one in counted if not PINNED.search(one)] or counted or [unschedulable or SILENT]
    return ", ".join(sorted(set(own)))[:LONGEST]


def refusal_reasons(placement: PlacementStatus, refused: Iterable[Pod] = ()) -> str:
    """Reasons for which nodes are excluded, and those of `refused` pods, in one text; empty: there are none."""
    avoided = {excluded.cause for excluded in placement.excluded if excluded.cause}
    causes = sorted(avoided | {refusal_reason(pod.unschedulable) for pod in refused})
    return "; ".join([*causes[:MOST], *(["and others"] if causes[MOST:] else [])])


def refusal_message(s: Snapshot, status: JobStatus) -> str:
    """Why nodes have recently refused pods, in one sentence. Empty: none has, the whole gang is on nodes, or something else is in the way now."""
    placement = status.placement
    if placement is None or placement.problem or placement.unschedulable or on_nodes(s, status):
        return ""
    why = refusal_reasons(placement)
    return f"in the last {EXCLUDED_SECONDS / 60:.0f} minutes nodes refused pods: {why}" if why else ""


def is_refused(pod: Pod) -> bool:
    """Whether the scheduler's message is about the pod's node, so that the next one may be about another."""
    return bool(pod.unschedulable) and not ON_NO_NODE.match(pod.unschedulable)


def unscheduled(s: Snapshot) -> str:
    """Pods for which the cluster's scheduler has no node, with what it says of the first, for example about its gang; empty: there are none."""
    waiting = sorted((p for p in s.pods if p.unschedulable and not p.deleting), key=lambda p: p.name)
    others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{waiting[0].name}{others}: {waiting[0].unschedulable}" if waiting else ""


def on_nodes(s: Snapshot, status: JobStatus) -> bool:
    """Whether every pod of the gang is on a node."""
    spec = s.spec_of(status.attempt)
    there = Counter(p.role for p in s.pods if p.node and not p.deleting)
    return spec is not None and all(there[role] >= count for role, count in required_pods(spec).items())


PodNames = Mapping[str, list[str]]
"""Names of the pods that are wanted, by role."""
UNBOUND_SECONDS = 60.0
"""Seconds that an ungated pod may take to get onto its node. Later, another pod was faster, or the cluster's scheduler refuses the node."""
RETRY = 300.0
"""Seconds until a job that lacks a node is looked at again, in case that nobody wakes it. It is woken when capacity that helps becomes free."""


def assign_nodes(s: Snapshot, status: JobStatus) -> Change:
    """The scheduler was asked for what the job wanted before this reconcile."""
    asked = target(s, s.status)
    if asked is None or not is_scheduled_here(s.spec_of(status.attempt), status, s.spec_suspend):
        ungate = tuple(released_to_others(s, status))
        status = set_(status, placement=None) if status.placement else status
        return Change(status, due=tuple(retries(s)), ungate=ungate)
    before = status.placement or PlacementStatus()
    if before.excluded:
        avoided = excluded_nodes(status, s.now)
        before = before.model_copy(update={"excluded": [e for e in before.excluded if e.node in avoided]})
    refused = [p for p in _late(s) if not ON_NO_NODE.match(p.unschedulable)]
    if refused:
        return _back_out(s, status, before, refused)
    wanted = wanted_names(s.job.name, asked)
    placement, events = _assigned(s, before, wanted)
    without = dispensable_pods(s)
    kept = [x for x in placement.assignments if x.pod not in without]
    placement = placement.model_copy(update={"assignments": kept, "unschedulable": _unschedulable(s)})
    if placement.unschedulable and not before.unschedulable:
        events += (Event("Warning", reasons.UNSCHEDULABLE, placement.unschedulable),)
    due = [at for at in map(_bound_by, s.pods) if at is not None and at > s.now]
    due += [s.now + RETRY] if len(placement.assignments) < sum(placed_pods(asked.spec).values()) else []
    needed = required_names(asked.spec, wanted)
    ungate = tuple(assigned_pods(s, status, placement, needed))
    due += [s.now + UNBOUND_SECONDS] if ungate else []
    due += [seconds(e.until) for e in placement.excluded]
    overdue = seconds(placement.waiting_since) + s.policy.reserve_after_seconds
    due += [at for at in (overdue, seconds(placement.expected_at)) if placement.waiting_since and at > s.now]
    due += retries(s)
    return Change(set_(status, placement=placement), events, tuple(due), ungate=ungate)


def _late(s: Snapshot) -> list[Pod]:
    """Ungated pods that should be on their nodes by now, in the order of their names."""
    bounds = ((p, _bound_by(p)) for p in s.pods)
    late = [p for p, at in bounds if at is not None and at <= s.now]
    return sorted(late, key=lambda p: p.name)


def _bound_by(pod: Pod) -> float | None:
    """When an ungated pod without a node should be on one, in seconds since the epoch; None: it is, or is gated."""
    if pod.ungated_at is None or pod.node or pod.deleting:
        return None
    return pod.ungated_at + UNBOUND_SECONDS


def _unschedulable(s: Snapshot) -> str:
    """Why ungated pods fit no node at all, such as a claim that does not exist. To assign other nodes would not help, so they keep theirs."""
    matches = ((p.name, ON_NO_NODE.match(p.unschedulable)) for p in _late(s))
    refused = [(name, match[1]) for name, match in matches if match]
    if not refused:
        return ""
    pod, why = refused[0]
    others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"no node takes {pod}{others}: {why}"


def _assigned(s: Snapshot, before: PlacementStatus, wanted: PodNames) -> tuple[PlacementStatus, tuple[Event, ...]]:
    """The assignments by the scheduler's result, if the job has asked for one in this reconcile.

    If the whole gang does not fit, only pods that are on their nodes keep them: two jobs that each hold a part of their nodes would wait for each
    other.
    """
    result, excluded = s.scheduling, before.excluded
    if result is None:
        known = set[str]().union(*wanted.values())
        if lacks_pods(s):  # what is not on its node yet would keep it from others
            known &= {pod.name for pod in s.pods if pod.node and not pod.deleting}
        kept = [x for x in before.assignments if x.pod in known]
        settled = {
            "assignments": kept,
            "excluded": excluded,
            "problem": "",
            "waiting_since": "",
            "reserved": [],
            "expected_at": "",
        }
        return before.model_copy(update=settled), ()
    problem = result.plan.problem
    if problem:
        there = {pod.name: pod.node for pod in s.pods}
        kept = [x for x in before.assignments if result.request.current.get(x.pod) == x.node == there.get(x.pod)]
        news = () if before.problem else (Event("Warning", reasons.UNPLACEABLE, problem),)
        waits: dict[str, object] = {"assignments": kept, "excluded": excluded, "problem": problem}
        waits["waiting_since"] = before.waiting_since or stamp(s.now)
        waits["reserved"] = sorted(result.claim.taken) if result.claim else []
        waits["expected_at"] = stamp(result.claim.starts) if result.claim and result.claim.starts else ""
        return before.model_copy(update=waits), news
    gang = result.request.gang
    requests = {role: gang.demand(role).requests for role, pods in wanted.items() if pods}
    until = stamp(result.until) if result.until else before.borrowed_until if result.request.current else ""
    return PlacementStatus(
        assignments=_assignments(s, result, wanted),
        requests=requests,
        excluded=excluded,
        borrowed_until=until,
        report=result.report,
    ), ()


def _assignments(s: Snapshot, result: SchedulingResult, wanted: PodNames) -> list[PodAssignment]:
    plan = result.plan
    gangs = {role: pods for role, pods in wanted.items() if names.is_model_role(role)}
    old = {x.pod: x.rank for x in s.status.placement.assignments} if s.status.placement else {}
    assignments = list[PodAssignment]()
    for role, pods in gangs.items():
        nodes = plan.members(role)
        ranks = assign_ranks(pods[: len(nodes)], nodes, result.request.current, old)
        assignments += [PodAssignment(pod=pod, node=nodes[rank], rank=rank) for pod, rank in ranks.items()]
    servers = {role: pods for role, pods in wanted.items() if role not in gangs}
    placed = [pair for role, pods in servers.items() for pair in zip(pods, plan.servers(role), strict=True)]
    placed += zip(gangs[names.ROLE_TRAINER][len(plan.trainers) :], plan.spares, strict=True)
    return assignments + [PodAssignment(pod=pod, node=node) for pod, node in placed if node]


def assign_ranks(
    pods: Sequence[str], nodes: Sequence[str], current: Mapping[str, str], old: Mapping[str, int | None]
) -> dict[str, int]:
    """A rank for every pod of a gang. `nodes`: by rank; `current`: nodes of pods that stay, by pod. A pod that stays gets a rank of its node, its old
    one if that is there; the others get the ranks that are left."""
    free, assigned = dict(enumerate(nodes)), dict[str, int]()
    for pod in pods:
        rank = old.get(pod)
        if rank is not None and pod in current and free.get(rank) == current[pod]:
            assigned[pod] = rank
            del free[rank]
    for pod in pods:
        if pod in current and pod not in assigned:
            assigned[pod] = next(rank for rank, node in free.items() if node == current[pod])
            del free[assigned[pod]]
    rest = iter(free)
    return {pod: assigned[pod] if pod in assigned else next(rest) for pod in pods}


def _back_out(s: Snapshot, status: JobStatus, before: PlacementStatus, refused: Sequence[Pod]) -> Change:
    """Deletes pods that did not get onto their nodes, and excludes these nodes for a while. The StatefulSets make new, gated pods, which are placed
    again."""
    nodes = {x.pod: x.node for x in before.assignments}
    until = stamp(s.now + EXCLUDED_SECONDS)
    excluded = {e.node: e for e in before.excluded}
    for pod in refused:
        node = nodes.get(pod.name)
        if node:
            excluded[node] = Exclusion(node=node, until=until, cause=refusal_reason(pod.unschedulable))
    gone = {p.name for p in refused}
    placement = before.model_copy(
        update={
            "assignments": [x for x in before.assignments if x.pod not in gone],
            "excluded": list(excluded.values()),
        }
    )
    why = refusal_reasons(placement, refused)
    known = why == refusal_reasons(before) and gone <= nodes.keys()  # one event for each cause, not for each node
    news = () if known else (Event("Warning", reasons.NOT_BOUND, _not_bound(refused, nodes, why)),)
    return Change(set_(status, placement=placement), news, (s.now,), delete=tuple(refused))


def _not_bound(refused: Sequence[Pod], nodes: Mapping[str, str], why: str) -> str:
    """The message of the event."""
    first = refused[0].name
    others = f", as are {len(refused) - 1} more" if len(refused) > 1 else ""
    node = f"node {nodes[first]}" if first in nodes else "a node"
    where = f"did not get onto {node} in {UNBOUND_SECONDS:.0f} s"
    return f"pod {first} {where} and is placed anew{others}: {why}"
