"""Divides the nodes among the roles of a job, so that pods of all sizes fit together."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rljob_api import names
from rljob_api.quantity import Resources
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang
from rljob_placement.nodes import Stay
from rljob_placement.packing import Kind, pack
from rljob_placement.space import refusal


def share(cluster: Cluster, gang: Gang, stay: Stay) -> Mapping[str, Cluster] | None:
    """A cluster for each role, with just what its pods take of each node; None: the pods do not fit together. Rollouts beyond the minimum are not
    counted."""
    counts = _counts(gang, stay, {node.name for node in cluster.nodes})
    roles = sorted(counts, key=lambda role: _size(gang.demand(role)), reverse=True)
    ways = pack([dict(n.free) for n in cluster.nodes], [_kind(cluster, gang, role, counts[role]) for role in roles])
    if ways is None:
        return None
    return {role: _part(cluster, gang.demand(role), (way[k] for way in ways)) for k, role in enumerate(roles)}


def _counts(gang: Gang, stay: Stay, present: set[str]) -> dict[str, int]:
    """Number of pods of each role that have no node yet. `present`: names of the nodes."""
    found = {names.ROLE_TRAINER: gang.trainers - _staying(stay, present)}
    found[names.ROLE_ROLLOUT] = gang.minimum - _servers(stay.rollouts, gang.minimum, present)
    for role, own in gang.gangs.items():
        found[role] = own.trainers - _staying(stay.gangs.get(role, Stay()), present)
    for pool in gang.pools:
        found[pool.name] = pool.replicas - _servers(stay.servers(pool.name), pool.replicas, present)
    return found


def _staying(stay: Stay, present: set[str]) -> int:
    return sum(name in present for name in (stay.ranks.values() or stay.trainers))


def _servers(stay: Mapping[int, str], count: int, present: set[str]) -> int:
    return sum(number < count and name in present for number, name in stay.items())


def _size(demand: Demand) -> tuple[int, int]:
    """Sort key of roles: devices, then cpu."""
    return max((n for name, n in demand.requests.items() if "/" in name), default=0), demand.requests.get("cpu", 0)


def _kind(cluster: Cluster, gang: Gang, role: str, count: int) -> Kind:
    demand = gang.demand(role)
    nodes = (n for n, node in enumerate(cluster.nodes) if not refusal(node, gang, demand))
    return Kind(dict(demand.requests), count, frozenset(nodes))


def _part(cluster: Cluster, demand: Demand, pods: Iterable[int]) -> Cluster:
    return Cluster(tuple(_with(node, demand.requests, here) for node, here in zip(cluster.nodes, pods, strict=True)))


def _with(node: Node, requests: Resources, pods: int) -> Node:
    return replace(node, free={name: pods * each for name, each in requests.items()})
