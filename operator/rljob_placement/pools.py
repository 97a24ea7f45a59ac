"""Nodes for the servers of pools: the nearest to the trainer of rank 0, which asks them, and of equally near ones the fullest."""

from collections.abc import Mapping

from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang, Pool
from rljob_placement.nodes import Plan, Stay
from rljob_placement.space import capacity, common, refusal

Servers = tuple[str, ...]
"""Nodes of a pool's servers."""


def place(
    cluster: Cluster, gang: Gang, stay: Mapping[str, Mapping[int, str]], near: str = ""
) -> dict[str, Servers] | Pool:
    """Nodes of every server, by pool; or the pool that does not fit. Pools with the least capacity are placed first.

    `stay`: nodes of servers that stay, by pool and number; `near`: the node of the trainer of rank 0; empty: not known yet.
    """
    found: dict[str, Servers] = {}
    for pool in sorted(
        gang.pools, key=lambda pool: sum(capacity_for(node, gang, pool.demand) for node in cluster.nodes)
    ):
        servers = _placed(cluster, gang, pool, stay.get(pool.name, {}), near)
        if not all(servers):
            return pool
        found[pool.name] = servers
        cluster = cluster.without(Plan(pools={pool.name: servers}).taken(gang, Stay(pools=stay)))
    return {pool.name: found[pool.name] for pool in gang.pools}


def _placed(cluster: Cluster, gang: Gang, pool: Pool, stay: Mapping[int, str], near: str) -> Servers:
    """Nodes of a pool's servers; empty for those that do not fit."""
    nodes = {node.name: node for node in cluster.nodes}
    capacities = {name: capacity_for(node, gang, pool.demand) for name, node in nodes.items()}
    order = sorted(capacities, key=lambda name: (apart(gang, nodes.get(near), nodes[name]), capacities[name]))
    free = (name for name in order for _ in range(capacities[name]))
    return tuple(stay[i] if stay.get(i) in nodes else next(free, "") for i in range(pool.replicas))


def capacity_for(node: Node, gang: Gang, demand: Demand) -> int:
    return 0 if refusal(node, gang, demand) else capacity(node, demand)


def apart(gang: Gang, one: Node | None, other: Node) -> int:
    """Number of levels that two nodes do not share; 0: they are the same, or one is not known."""
    if one is None or one.name == other.name:
        return 0
    paths = [tuple(node.labels.get(key, "") for key in gang.levels) for node in (one, other)]
    return len(gang.levels) + 1 - common(paths[0], paths[1])
