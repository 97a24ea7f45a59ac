"""Who gets nodes before others: which jobs of lower priority leave theirs to a job that waits, as few as make room for its whole gang, or none; and
which jobs may have reserved nodes meanwhile.

Jobs leave as if they were suspended (policies/release.py), which takes the end of a step and a checkpoint. Until then nobody gets what they free but
the job that they leave for: otherwise the first to leave would take its own nodes again.

Jobs that are done before a reservation needs its nodes may have them (EASY backfilling: Lifka, JSSPP 1995). A job that has neither done a step nor
has a limit goes before no other: nobody knows how long it takes.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.quantity import Thousandths, add
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status import JobStatus
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import Claim, SchedulingRequest
from rljob_operator.model.snapshot import is_open
from rljob_operator.times import seconds
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Placement

MOST_SPARED = 8
"""Jobs that are tried to be spared one by one, or nodes that are tried to be exchanged, at most: each is a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job of this backend that holds nodes."""

    job: Key
    uid: str
    created: str
    priority: int
    taken: Mapping[str, Thousandths]
    """What it holds, by node."""
    leaving: bool
    """Whether it is about to give all of that back."""
    ends: float | None = None
    """When it should give that back, in seconds since the epoch; None: not known."""
    until: float | None = None
    """Until when it has nodes that are reserved for another, in seconds since the epoch; None: it has none of these."""


def freed(cluster: Cluster, holders: Iterable[Holder]) -> Cluster:
    """The cluster when these jobs have left it."""
    less = dict[str, Thousandths]()
    for holder in holders:
        for node, amounts in holder.taken.items():
            less[node] = add(less.get(node, {}), {name: -amount for name, amount in amounts.items()})
    return cluster.without(less)


def claim(
    one: SchedulingRequest, cluster: Cluster, holders: Sequence[Holder], planned: Callable[[Cluster], Placement]
) -> Claim | None:
    """What the job gets once others have left; None: not even all jobs of lower priority make room for it.

    The youngest of the lowest priority leave first. `planned`: the plan of the job's gang on a cluster, which does not fit now.
    """
    future = freed(cluster, (holder for holder in holders if holder.leaving))
    plan = planned(future)
    if not plan.problem:
        return Claim(victims=(), taken=plan.taken(one.gang, one.stay))
    below = [holder for holder in holders if not holder.leaving and holder.priority < one.priority]
    below.sort(key=lambda holder: (holder.created, holder.uid), reverse=True)
    below.sort(key=lambda holder: holder.priority)
    if not below or planned(freed(future, below)).problem:
        return None
    chosen = _spared(below[: _fewest(below, future, planned)], future, planned)
    taken = planned(freed(future, chosen)).taken(one.gang, one.stay)
    return Claim(victims=tuple(holder.job for holder in chosen), taken=taken)


def reservation(
    one: SchedulingRequest,
    cluster: Cluster,
    holders: Sequence[Holder],
    before: Claim | None,
    planned: Callable[[Cluster], Placement],
    now: float,
) -> Claim | None:
    """What is kept for a job that has waited for too long, as others end; None: it would not fit if all of them had ended.

    `before`: what was kept for it. That stays as long as it can, since another choice each time would never be complete; but who holds a node may
    never end, so nodes that are free already take the places of those that others hold.
    """
    others = [holder for holder in holders if holder.job != one.job]
    future = freed(cluster, others)
    if before and _holds(future, before.taken):
        taken = before.taken
    else:
        plan = planned(future)
        if plan.problem:
            return None
        taken = plan.taken(one.gang, one.stay)
    occupied = [node for node in taken if not _holds(cluster, {node: taken[node]})]
    for node in occupied[:MOST_SPARED]:
        plan = planned(_freed_on(cluster, others, taken.keys() - {node}))
        if not plan.problem:
            taken = plan.taken(one.gang, one.stay)
    victims = _overstaying(taken, cluster, others, now)
    return Claim(victims=victims, taken=taken, starts=_free_at(taken, cluster, others))


def _overstaying(
    taken: Mapping[str, Thousandths], cluster: Cluster, holders: Sequence[Holder], now: float
) -> tuple[Key, ...]:
    """Those who went before the reservation and are not done in time, once nobody else holds what is reserved."""
    late = [holder for holder in holders if holder.until is not None and holder.until <= now and not holder.leaving]
    if not _holds(freed(cluster, (*late, *(holder for holder in holders if holder.leaving))), taken):
        return ()
    occupied = _occupied(taken, cluster)
    return tuple(holder.job for holder in late if not occupied.isdisjoint(holder.taken))


def _occupied(taken: Mapping[str, Thousandths], cluster: Cluster) -> set[str]:
    return {node for node in taken if not _holds(cluster, {node: taken[node]})}


def _free_at(taken: Mapping[str, Thousandths], cluster: Cluster, holders: Sequence[Holder]) -> float | None:
    """When the last of those that hold what is reserved should have ended; None: not known."""
    occupied = _occupied(taken, cluster)
    ends = [holder.ends for holder in holders if not occupied.isdisjoint(holder.taken)]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _freed_on(cluster: Cluster, holders: Iterable[Holder], nodes: Collection[str]) -> Cluster:
    """The cluster when these jobs have left some of its nodes."""
    return freed(cluster, (replace(h, taken={n: v for n, v in h.taken.items() if n in nodes}) for h in holders))


def _holds(cluster: Cluster, taken: Mapping[str, Thousandths]) -> bool:
    """Whether all nodes are there and open, and have this much free."""
    there = {node.name: node for node in cluster.nodes if node.name in taken and not node.closed}
    enough = (there[n].free.get(k, 0) >= v for n, amounts in taken.items() if n in there for k, v in amounts.items())
    return there.keys() == taken.keys() and all(enough)


def _fewest(below: Sequence[Holder], future: Cluster, planned: Callable[[Cluster], Placement]) -> int:
    """How many of these jobs have to leave, from the first on; all of them are enough."""
    low, high = 1, len(below)
    while low < high:
        middle = (low + high) // 2
        if planned(freed(future, below[:middle])).problem:
            low = middle + 1
        else:
            high = middle
    return low


def _spared(chosen: list[Holder], future: Cluster, planned: Callable[[Cluster], Placement]) -> list[Holder]:
    """Those of the jobs that are needed: not those that hold none of the nodes, nor, the most important first, those without which it fits too."""
    nodes = planned(freed(future, chosen)).nodes()
    chosen = [holder for holder in chosen if not nodes.isdisjoint(holder.taken)]
    for holder in [*reversed(chosen)][:MOST_SPARED]:
        fewer = [other for other in chosen if other is not holder]
        if fewer and not planned(freed(future, fewer)).problem:
            chosen = fewer
    return chosen


SLACK, STARTING = 1.25, 300.0
"""By how much longer than its last steps suggest a job may take that goes before others, and the seconds that it may take to start."""


def remaining(spec: RLJobSpec, life: LifecycleSpec, status: JobStatus, now: float) -> float | None:
    """Seconds that the job still needs its nodes, by the duration of its last steps or its limit; None: neither is known. `life`: the limits in
    force, which need not be those of an attempt's `spec`."""
    progress = status.progress
    steps = spec.train.steps or progress.steps
    remaining = math.inf
    if progress.pace is not None and steps:
        remaining = max(0, steps - progress.step) * progress.pace
    if life.active_deadline_seconds is not None:
        attempt = status.attempt
        spent = status.active_seconds
        spent += max(0.0, now - seconds(attempt.started_at)) if attempt and is_open(attempt) else 0.0
        remaining = min(remaining, max(0.0, life.active_deadline_seconds - spent) + life.drain_timeout_seconds)
    return None if math.isinf(remaining) else remaining


def ends_before(one: SchedulingRequest, kept: Claim, now: float) -> bool:
    """Whether the job is done before the reservation's job may start. `now`: seconds since the epoch."""
    done = done_by(one, now)
    return done is not None and kept.starts is not None and done <= kept.starts


def done_by(one: SchedulingRequest, now: float) -> float | None:
    """When a job that starts now should be done at the latest, in seconds since the epoch; None: not known."""
    return None if one.lasts is None else now + STARTING + SLACK * one.lasts
