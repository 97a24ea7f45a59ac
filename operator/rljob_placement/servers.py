"""Places servers of several pods: each whole or not at all, in the narrowest domain that has capacity for its pods, as near to the trainer of rank 0
as there is one, and of equally near ones in the fullest. Pods of a server that stay on their nodes determine the domain of the others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang, Pool
from rljob_placement.space import capacity, common, refusal

Path = tuple[str, ...]
"""Topology domains of a node, widest first, and its name; a domain is the beginning of one."""


class ServerRoom:
    """How many further pods of a pool fit into each domain of the cluster."""

    def __init__(self, cluster: Cluster, gang: Gang, pool: Pool) -> None:
        self.paths = {n.name: (*(n.labels.get(key, "") for key in gang.levels), n.name) for n in cluster.nodes}
        self._depth = len(gang.levels) + 1
        self._free = Counter[Path]()
        self._nodes = defaultdict[Path, list[str]](list)
        for node in cluster.nodes:
            count = 0 if refusal(node, gang, pool.demand) else capacity(node, pool.demand)
            if count:
                self._add(self.paths[node.name], count)
                for domain in self._domains(self.paths[node.name]):
                    self._nodes[domain].append(node.name)
        self._of_depth = [[d for d in self._nodes if len(d) == depth] for depth in range(self._depth + 1)]

    def place(self, count: int, staying: Sequence[str], near: Path | None) -> list[str]:
        """Nodes of `count` pods in the narrowest domain with capacity for them; empty: there is none.

        Args:
            staying: nodes of the same server's pods that stay, which the domain holds, too
            near: where the domain should be, if there are several
        """
        stays = [self.paths[name] for name in staying]
        for depth in range(self._depth, -1, -1):
            options = self._of_depth[depth] if not stays else self._shared(stays, depth)
            fitting = [domain for domain in options if self._free[domain] >= count]
            if fitting:
                best = min(fitting, key=lambda domain: (-_shared_levels(near, domain), self._free[domain]))
                return list(self._taken(best, count, stays))
        return []

    def _shared(self, stays: Sequence[Path], depth: int) -> list[Path]:
        """The domain of this depth that holds all of these nodes, if there is one."""
        paths = {path[:depth] for path in stays}
        return list(paths) if len(paths) == 1 else []

    def _taken(self, domain: Path, count: int, stays: Sequence[Path]) -> Iterator[str]:
        """Takes nodes of the domain: those nearest to pods that stay first, then those of its emptiest parts, so that the pods are in few of them."""
        inner = len(domain) + 1

        def distance(path: Path) -> tuple[int, int, Path]:
            return -max((common(path, stay) for stay in stays), default=0), -self._free[path[:inner]], path

        for path in sorted((self.paths[name] for name in self._nodes[domain]), key=distance):
            here = min(count, self._free[path])
            self._add(path, -here)
            count -= here
            yield from [path[-1]] * here

    def _add(self, path: Path, count: int) -> None:
        for domain in self._domains(path):
            self._free[domain] += count

    def _domains(self, path: Path) -> list[Path]:
        return [path[:depth] for depth in range(self._depth + 1)]


def _shared_levels(near: Path | None, domain: Path) -> int:
    return common(near[: len(domain)], domain) if near else 0


def place_servers(
    cluster: Cluster, gang: Gang, pool: Pool, stay: Mapping[int, str], near: str, numbers: Sequence[int]
) -> dict[int, tuple[str, ...]]:
    """Nodes of the pods of these servers, by the server's number; empty for pods of one that does not fit.

    Args:
        stay: nodes of pods that stay, by the pod's number
        near: node of the trainer of rank 0; empty: not known yet
    """
    room, placed = ServerRoom(cluster, gang, pool), dict[int, tuple[str, ...]]()
    for number in numbers:
        pods = range(number * pool.nodes, (number + 1) * pool.nodes)
        there = {pod: stay[pod] for pod in pods if stay.get(pod) in room.paths}
        free = iter(room.place(pool.nodes - len(there), list(there.values()), room.paths.get(near)))
        placed[number] = tuple(there[pod] if pod in there else next(free, "") for pod in pods)
    return placed
