"""The plan of a job: a node for every pod of its gangs, all or nothing.

Trainers and rollouts are placed together, by their links (search.py); each further gang by its own links and its link to the trainer of rank 0;
pools, which exchange next to nothing with them, near that trainer. Each is placed in what those before it have left. If that does not work, the
order is reversed, and then every role gets a part of the nodes, so that all fit (sharing.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rljob_api import names
from rljob_placement.cluster import Cluster
from rljob_placement.explain import lacking
from rljob_placement.gang import Gang, Pool
from rljob_placement.nodes import Plan, Stay
from rljob_placement.pools import place
from rljob_placement.search import search
from rljob_placement.sharing import share
from rljob_placement.spares import spares

POOLS = "pools"
"""The step of an order that places all pools. The other steps are the roles of gangs."""


def plan(cluster: Cluster, gang: Gang, stay: Stay | None = None) -> Plan:
    """The plan, or the problem of the first try. `stay`: pods that keep their nodes."""
    stay = stay or Stay()
    found = _without_spares(cluster, gang, stay)
    if found.problem or not gang.spares:
        return found
    return replace(found, spares=spares(cluster.without(found.taken(gang, stay)), gang, found, stay.spares))


def _without_spares(cluster: Cluster, gang: Gang, stay: Stay) -> Plan:
    if not gang.pools and not gang.gangs:
        return search(cluster, gang, stay)
    tried = list[Plan]()
    for found in _attempts(cluster, gang, stay):
        if not found.problem:
            others = Plan(gangs=found.gangs, pools=found.pools)
            whole = search(cluster.without(others.taken(gang, stay)), gang, stay)
            return replace(whole, gangs=found.gangs, pools=found.pools)
        tried.append(found)
    return tried[0]


def _attempts(cluster: Cluster, gang: Gang, stay: Stay) -> Iterator[Plan]:
    """Plans with no more rollouts than the minimum: in order from the trainers on, in the reverse order, and with a part of the nodes for each
    role."""
    steps = (names.ROLE_TRAINER, *gang.gangs, *([POOLS] if gang.pools else []))
    yield _in_order(cluster, gang, stay, steps)
    yield _in_order(cluster, gang, stay, steps[::-1])
    if shares := share(cluster, gang, stay):
        yield _in_parts(shares, gang, stay)


def _in_order(cluster: Cluster, gang: Gang, stay: Stay, order: Sequence[str]) -> Plan:
    """Places one step after another, each in what is left."""
    found = Plan()
    for step in order:
        rest = cluster.without(found.taken(gang, stay))
        part = _step(rest, gang, stay, step, found.trainers[0] if found.trainers else "")
        if part.problem:
            return Plan(problem=f"alongside the job's other pods {part.problem}" if step != order[0] else part.problem)
        found = _joined(found, part)
    return found


def _in_parts(shares: Mapping[str, Cluster], gang: Gang, stay: Stay) -> Plan:
    """Places each role in its part of the nodes, and trainers and rollouts together in theirs."""
    both = shares[names.ROLE_TRAINER].joined(shares[names.ROLE_ROLLOUT])
    found = _step(both, gang, stay, names.ROLE_TRAINER, "")
    for role in gang.gangs:
        found = _joined(found, _step(shares[role], gang, stay, role, found.trainers[0]))
    for pool in gang.pools:
        found = _joined(found, _pools(shares[pool.name], replace(gang, pools=(pool,)), stay, found.trainers[0]))
    return found


def _joined(found: Plan, part: Plan) -> Plan:
    return replace(
        found,
        trainers=found.trainers or part.trainers,
        rollouts=found.rollouts or part.rollouts,
        pools={**found.pools, **part.pools},
        gangs={**found.gangs, **part.gangs},
        problem=found.problem or part.problem,
    )


def _step(rest: Cluster, gang: Gang, stay: Stay, step: str, first: str) -> Plan:
    """Places one step. `first`: the node of the trainer of rank 0; empty: not known yet."""
    if step == names.ROLE_TRAINER:
        return search(rest, replace(gang, rollouts=gang.minimum), stay)
    if step == POOLS:
        return _pools(rest, gang, stay, first)
    own, there = gang.gangs[step], stay.gangs.get(step, Stay())
    if any(node.name == first for node in rest.nodes):
        found = search(rest, own, replace(there, rollouts={0: first}), step)
    else:
        found = search(rest, replace(own, rollouts=0, minimum=0), there, step)
    return found if found.problem else Plan(gangs={step: found.trainers})


def _pools(rest: Cluster, gang: Gang, stay: Stay, first: str) -> Plan:
    pools = place(rest, gang, stay.pools, near=first)
    if not isinstance(pools, Pool):
        return Plan(pools=pools)
    wanted = pools.replicas - len(stay.servers(pools.name))
    return Plan(problem=lacking(rest, gang, pools.name, pools.demand, wanted))
