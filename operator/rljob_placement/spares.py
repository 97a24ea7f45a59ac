"""Nodes for spares, in what the rest of the job has left: where none of its trainers is, so that a lost node does not take a spare with it, near the
trainer of rank 0, whose neighbours it may have to replace, and of equally near nodes the fullest."""

from collections.abc import Mapping

from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang
from rljob_placement.nodes import Plan
from rljob_placement.pools import apart, capacity_for

Spares = tuple[str, ...]
"""Nodes by number of the spare; empty for one that does not fit."""


def spares(cluster: Cluster, gang: Gang, found: Plan, stay: Mapping[int, str]) -> Spares:
    """`cluster`: what is left; `found`: the nodes of the other pods; `stay`: nodes of spares that stay, by number."""
    nodes = {node.name: node for node in cluster.nodes}
    capacities = {name: capacity_for(node, gang, gang.trainer) for name, node in nodes.items()}
    taken, first = {*found.trainers, *stay.values()}, nodes.get(found.trainers[0])
    placed = list[str]()
    for i in range(gang.spares):
        if stay.get(i) in nodes:
            placed.append(stay[i])
            continue
        free = [name for name, count in capacities.items() if count]
        best = min(
            free, key=lambda name: (name in taken, apart(gang, first, nodes[name]), capacities[name]), default=""
        )
        placed.append(best)
        if best:
            capacities[best] -= 1
            taken.add(best)
    return tuple(placed)
