"""The plan of a job: a node for every pod of its gangs, all or nothing. Trainers and rollouts are planned together, by their links (search.py);
each further gang by its own links and its edge to the trainer of rank 0; pools, which exchange next to nothing with them, near that trainer. One
follows the other in what is left, and where that is too little, in the other order, and then in parts of the nodes on which all fit (sharing.py)."""

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

POOLS = "pools"
"""All of them: one step of an order. The other steps are the roles of gangs."""


def plan(cluster: Cluster, gang: Gang, stay: Stay | None = None) -> Plan:
    stay = stay or Stay()
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
    """With no more rollouts than the minimum: trainers first, the other way round, and each role in its part of nodes on which all fit together."""
    steps = (names.ROLE_TRAINER, *gang.gangs, *([POOLS] if gang.pools else []))
    yield _in_order(cluster, gang, stay, steps)
    yield _in_order(cluster, gang, stay, steps[::-1])
    if shares := share(cluster, gang, stay):
        yield _in_parts(shares, gang, stay)


def _in_order(cluster: Cluster, gang: Gang, stay: Stay, order: Sequence[str]) -> Plan:
    """One after the other, in what is left."""
    found = Plan()
    for step in order:
        rest = cluster.without(found.taken(gang, stay))
        part = _step(rest, gang, stay, step, found.trainers[0] if found.trainers else "")
        if part.problem:
            return Plan(problem=f"alongside the job's other pods {part.problem}" if step != order[0] else part.problem)
        found = _joined(found, part)
    return found


def _in_parts(shares: Mapping[str, Cluster], gang: Gang, stay: Stay) -> Plan:
    """Each role in a part of its own, trainers and rollouts in one."""
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
    """`first`: the node of the trainer of rank 0, if it is known."""
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
