"""The report of a placement: where stages and rollouts are, and how many bytes per step cross each level."""

from collections.abc import Mapping, Sequence

from rljob_api.status import Crossing, PlacementReport
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang
from rljob_placement.nodes import Plan
from rljob_placement.space import common

Path = tuple[str, ...]
NODE = "node"


def report(cluster: Cluster, gang: Gang, plan: Plan) -> PlacementReport:
    """The report of a plan without a problem."""
    paths = {n.name: (*(n.labels.get(key, "") for key in gang.levels), n.name) for n in cluster.nodes}
    parts = [(gang, (*plan.trainers, *plan.rollouts))]
    parts += [(gang.gangs[role], (*nodes, plan.trainers[0])) for role, nodes in plan.gangs.items()]
    return PlacementReport(
        stages=_stages(gang, paths, plan.trainers),
        rollouts=[_domain([paths[name]]) if name else "" for name in plan.rollouts],
        spares=[_domain([paths[name]]) if name else "" for name in plan.spares],
        pools={pool: [_domain([paths[name]]) for name in servers] for pool, servers in plan.pools.items()},
        gangs={role: _stages(gang.gangs[role], paths, nodes) for role, nodes in plan.gangs.items()},
        levels=_crossings(gang.levels, paths, parts),
    )


def _stages(gang: Gang, paths: Mapping[str, Path], nodes: Sequence[str]) -> list[str]:
    """The domain of each pipeline stage. `nodes`: by node rank."""
    share = max(1, gang.trainers // gang.stages)
    stages = [nodes[s * gang.trainers // gang.stages :][:share] for s in range(gang.stages)]
    return [_domain([paths[name] for name in names]) for names in stages]


def _domain(paths: Sequence[Path]) -> str:
    """The narrowest domain that holds all of them, such as `b1/r3`, or with the node's name if it is one node; empty: only the cluster does."""
    shared = min(common(paths[0], path) for path in paths)
    return "/".join(part for part in paths[0][:shared] if part)


def _crossings(
    keys: Sequence[str], paths: Mapping[str, Path], parts: Sequence[tuple[Gang, Sequence[str]]]
) -> list[Crossing]:
    """Pairs of pods, by the widest level that separates them; pods on one node cross none. `parts`: gangs, with the nodes of the pods that their
    links refer to."""
    levels = [*keys, NODE]
    pairs: list[set[tuple[int, int, int]]] = [set() for _ in levels]
    volume = [0.0] * len(levels)
    for part, (gang, names) in enumerate(parts):
        for link in gang.links:
            one, other = names[link.one], names[link.other]
            if one and other and one != other:
                level = common(paths[one], paths[other])
                pairs[level].add((part, link.one, link.other))
                volume[level] += link.bytes
    return [
        Crossing(level=level, pairs=len(pairs[i]), bytes_per_step=round(volume[i])) for i, level in enumerate(levels)
    ]
