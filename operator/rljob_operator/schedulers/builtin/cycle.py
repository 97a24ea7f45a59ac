"""One scheduling cycle: jobs are placed one after another, each on what those before it have left. A gang gets all of its nodes or none."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rljob_api.status_parts import PlacementReport
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import Claim, SchedulingRequest, SchedulingResult
from rljob_operator.schedulers.builtin.reservations import Holder, claim, done_by, ends_before, freed, reservation
from rljob_placement.cluster import Cluster, Node
from rljob_placement.explain import report
from rljob_placement.gang import Demand, Gang, Placement, Stay
from rljob_placement.plan import plan
from rljob_placement.space import capacity, refusal

EXCLUDED = "avoided by this job"
NO_CAPACITY = Placement(problem="no capacity")
NO_CLAIMS: Mapping[Key, Claim] = {}
NOTHING = Claim(victims=(), taken={})

MOST_CLAIMS = 4
"""Different requests for which jobs of lower priority are looked through in a cycle in vain, and those for which a reservation is tried in vain.
Those that have claims, or are too large anyway, do not count."""


def schedule_pending(
    cluster: Cluster,
    pending: Iterable[SchedulingRequest],
    holders: Sequence[Holder] = (),
    claims: Mapping[Key, Claim] = NO_CLAIMS,
    now: float = 0.0,
) -> tuple[list[SchedulingResult], Cluster]:
    """A result for each request, in the order in which they were served, and the cluster with what is left.

    A job that does not fit does not hold back those after it, unless others leave their nodes for it, as `holders` may have to, or it is the first
    overdue job that would fit once others have ended: then nodes are kept for it, for all but those that are done before it needs them. `claims`:
    what is kept already, by job; `now`: seconds since the epoch.
    """
    results, failed, tried = [], dict[str, Placement](), dict[tuple[str, int], bool]()
    pending = sorted(pending, key=lambda request: request.order)
    reserved, short_failed, hopeless = NOTHING, dict[str, Placement](), dict[str, bool]()
    free, theirs = cluster, {one.job for one in pending}  # free of claims, too
    for job, known in claims.items():
        free = free if job in theirs else free.without(known.taken)
    for one in pending:
        planned, claimed_now, until = failed.get(one.signature) or _plan(free, one), None, None
        if planned.problem:  # there is only less for those after it
            failed[one.signature] = planned
            short = _backfilled(free, one, reserved, short_failed) if ends_before(one, reserved, now) else None
            if short:
                planned, until = short, done_by(one, now)
        if planned.problem:
            claimed_now = _claim(free, one, holders, tried, one.job in claims)
            if one.overdue and not claimed_now and reserved is NOTHING:
                claimed_now = _reservation(free, one, holders, claims.get(one.job), hopeless, now)
                reserved = claimed_now or NOTHING
        if claimed_now:
            free = free.without(claimed_now.taken)
            holders = [replace(h, leaving=h.leaving or h.job in claimed_now.victims) for h in holders]
        results.append(SchedulingResult(one, planned, _report(free, one, planned), claimed_now, until))
        taken = results[-1].taken()
        cluster, free = cluster.without(taken), free.without(taken)
    return results, cluster


def _returned(cluster: Cluster, claim: Claim) -> Cluster:
    """The cluster with what is kept by a claim."""
    return cluster.without({n: {name: -v for name, v in amounts.items()} for n, amounts in claim.taken.items()})


def _backfilled(
    cluster: Cluster, one: SchedulingRequest, kept: Claim, failed: dict[str, Placement]
) -> Placement | None:
    """The plan with what is kept, too; None: it does not fit there either. `failed`: plans that were made in this cycle in vain, by signature."""
    if one.signature in failed:
        return None
    planned = _planner(one)(_returned(cluster, kept))
    if planned.problem:
        failed[one.signature] = planned
        return None
    return planned


def _reservation(
    cluster: Cluster,
    one: SchedulingRequest,
    holders: Sequence[Holder],
    before: Claim | None,
    hopeless: dict[str, bool],
    now: float,
) -> Claim | None:
    """What is kept for an overdue job. `hopeless`: signatures of requests for which nothing can be kept, and whether it took plans to know that."""
    if one.signature in hopeless or (before is None and sum(hopeless.values()) >= MOST_CLAIMS):
        return None
    may_fit = next(may_reserve([one], holders, cluster), None) is not None
    reserved = reservation(one, cluster, holders, before, _planner(one), now) if may_fit else None
    if reserved is None:
        hopeless[one.signature] = may_fit
    return reserved


def may_reserve(
    overdue: Iterable[SchedulingRequest], holders: Iterable[Holder], cluster: Cluster
) -> Iterator[SchedulingRequest]:
    """Those requests, one of each kind, for which there is capacity for each role alone once all others have ended."""
    future, counts, known = freed(cluster, holders), dict[str, int](), set[str]()
    for one in overdue:
        if one.signature not in known and not one.uncounted and _has_capacity(future, one, counts):
            yield one
        known.add(one.signature)


def _claim(
    cluster: Cluster,
    one: SchedulingRequest,
    holders: Sequence[Holder],
    tried: dict[tuple[str, int], bool],
    is_known: bool,
) -> Claim | None:
    """`tried`: signatures and priorities of requests for which that was in vain in this cycle, and whether it took plans; `is_known`: whether the
    job has a claim."""
    key = one.signature, one.priority
    if key in tried or not (one.preempts and may_claim(one, holders)):
        return None
    others = [holder for holder in holders if holder.job != one.job]
    most = freed(cluster, (holder for holder in others if holder.leaving or holder.priority < one.priority))
    if not _has_capacity(most, one, {}):
        tried[key] = False
        return None
    if not is_known and sum(tried.values()) >= MOST_CLAIMS:
        return None
    claimed = claim(one, cluster, others, _planner(one))
    if claimed is None:
        tried[key] = True
    return claimed


def _planner(one: SchedulingRequest) -> Callable[[Cluster], Placement]:
    """The plan of a request on a cluster, which takes long only if there may be capacity."""

    def planned(free: Cluster) -> Placement:
        return _plan(free, one) if _has_capacity(free, one, {}) else NO_CAPACITY

    return planned


def may_claim(one: SchedulingRequest, holders: Iterable[Holder]) -> bool:
    """Whether there are jobs that would leave for this one, or leave anyway."""
    return any(holder.leaving or holder.priority < one.priority for holder in holders)


def _plan(cluster: Cluster, one: SchedulingRequest) -> Placement:
    if one.uncounted:
        return Placement(problem=one.uncounted)
    good = usable(cluster, one)
    planned = plan(good, one.gang, one.stay)
    if planned.problem and good is not cluster:  # a node that is better avoided is better than none
        return plan(cluster, one.gang, one.stay)
    return planned


def usable(cluster: Cluster, one: SchedulingRequest) -> Cluster:
    """The cluster without nodes that the job avoids, and without quarantined ones; the cluster itself if there are none."""
    sound = cluster.sound()
    return sound.closing(one.excluded, EXCLUDED) if one.excluded else sound


def refuge(cluster: Cluster, requests: Mapping[frozenset[str], SchedulingRequest]) -> frozenset[str]:
    """The first of these sets of nodes without which the whole gang has capacity. `requests`: what the job asks for when it leaves them."""
    fits = (nodes for nodes, one in requests.items() if not plan(usable(cluster, one), one.gang, one.stay).problem)
    return next(fits, frozenset())


def offers_more(before: Node | None, now: Node) -> bool:
    """Whether a pod that the node did not take before may fit now."""
    if before is None or (before.closed and not now.closed):
        return True
    same = before.labels == now.labels and before.taints == now.taints
    return not same or any(amount > before.free.get(name, 0) for name, amount in now.free.items())


def helped(waiting: Sequence[SchedulingRequest], grown: Collection[Node], cluster: Cluster) -> list[SchedulingRequest]:
    """Those requests that may fit now: a node that offers more takes at least one of the pods, and the cluster has capacity for each role alone. For
    the others, a plan would find nothing."""
    known, counts = dict[str, bool](), dict[str, int]()
    for one in waiting:
        if one.signature not in known:
            known[one.signature] = any(_takes(node, one.gang) for node in grown) and _has_capacity(cluster, one, counts)
    return [one for one in waiting if known[one.signature]]


def _takes(node: Node, gang: Gang) -> bool:
    """Whether a pod of any role fits into what is free on the node."""
    own = (gang.trainer, gang.rollout, *(pool.demand for pool in gang.pools), *(g.trainer for g in gang.gangs.values()))
    return any(capacity(node, demand) and not refusal(node, gang, demand) for demand in own)


def _has_capacity(cluster: Cluster, one: SchedulingRequest, counts: dict[str, int]) -> bool:
    """Whether there is capacity for the required pods of each role that have no node. `counts`: how many pods of a kind the cluster has capacity for,
    as far as that is counted."""
    for demand, wanted in _required(one.gang, one.stay):
        key = repr((one.gang.levels, demand))
        if wanted > 0 and key not in counts:
            counts[key] = sum(capacity(n, demand) for n in cluster.nodes if not refusal(n, one.gang, demand))
        if wanted > counts.get(key, 0):
            return False
    return True


def _required(gang: Gang, stay: Stay) -> Iterator[tuple[Demand, int]]:
    """What the pods of each role need, and how many of them have no node and cannot be done without."""
    yield gang.trainer, gang.trainers - len(stay.ranks or stay.trainers)
    yield gang.rollout, gang.minimum - len(stay.rollouts)
    for pool in gang.pools:
        yield pool.demand, pool.pods - len(stay.servers(pool.name))
    for role, other in gang.gangs.items():
        there = stay.gangs.get(role, Stay())
        yield other.trainer, other.trainers - len(there.ranks or there.trainers)


def _report(cluster: Cluster, one: SchedulingRequest, planned: Placement) -> PlacementReport:
    return PlacementReport() if planned.problem else report(cluster, one.gang, planned)
