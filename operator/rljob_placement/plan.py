"""The plan of a job: a node for every pod of its gang, all or nothing. Trainers and rollouts are planned together, by their links (search.py);
pools, which exchange next to nothing with them, in what these leave or, where that is too little, before them."""

from collections.abc import Mapping
from dataclasses import replace

from rljob_placement.cluster import Cluster
from rljob_placement.explain import lacking
from rljob_placement.gang import Gang, Pool
from rljob_placement.nodes import Plan, Stay
from rljob_placement.pools import Servers, place
from rljob_placement.search import search


def plan(cluster: Cluster, gang: Gang, stay: Stay | None = None) -> Plan:
    stay = stay or Stay()
    pools = _pools(cluster, gang, stay) if gang.pools else {}
    if isinstance(pools, Plan):
        return pools
    rest = cluster.without(Plan(pools=pools).taken(gang, stay))
    found = search(rest, gang, stay)
    return found if found.problem else replace(found, pools=pools)


def _pools(cluster: Cluster, gang: Gang, stay: Stay) -> Mapping[str, Servers] | Plan:
    """Nodes that leave room for the rest of the gang; or a plan that says why there are none."""
    least = replace(gang, rollouts=gang.minimum)
    first = search(cluster, least, stay)
    if first.problem:
        return first
    rest = cluster.without(first.taken(gang, stay))
    pools = place(rest, gang, stay.pools, near=first.trainers[0])
    if not isinstance(pools, Pool):
        return pools
    before = place(cluster, gang, stay.pools)
    if not isinstance(before, Pool):
        without = cluster.without(Plan(pools=before).taken(gang, stay))
        if not search(without, least, stay).problem:
            return before
    wanted = pools.replicas - len(stay.servers(pools.name))
    return Plan(problem="alongside trainers and rollouts " + lacking(rest, gang, pools.name, pools.demand, wanted))
