"""The domains of a topology level, of which one has to hold a whole gang (spec.scheduling.requiredLevel)."""

from collections.abc import Iterator

from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Gang, Stay
from rljob_placement.space import capacity, refusal

Path = tuple[str, ...]


def domains(cluster: Cluster, gang: Gang, stay: Stay) -> list[Cluster]:
    """Domains that may hold the gang, the fullest first, so that the others stay free for larger ones. Pods that stay are not moved: they choose the
    domain, or the domains, if they are in several since the level was not required then."""
    found = dict[Path, list[Node]]()
    for node in cluster.nodes:
        path = tuple(node.labels.get(key, "") for key in gang.levels[: gang.within])
        if all(path):
            found.setdefault(path, []).append(node)
    there = {*_staying(stay)}
    if chosen := [nodes for nodes in found.values() if any(node.name in there for node in nodes)]:
        return [Cluster(tuple(node for nodes in chosen for node in nodes))]
    return sorted((Cluster(tuple(nodes)) for nodes in found.values()), key=lambda part: trainers_in(part, gang))


def trainers_in(cluster: Cluster, gang: Gang) -> int:
    """How many trainers it has capacity for."""
    return sum(capacity(n, gang.trainer) for n in cluster.nodes if not refusal(n, gang, gang.trainer))


def _staying(stay: Stay) -> Iterator[str]:
    yield from stay.trainers
    for numbered in (stay.ranks, stay.rollouts, stay.spares, *stay.pools.values()):
        yield from numbered.values()
    for gang in stay.gangs.values():
        yield from _staying(gang)
