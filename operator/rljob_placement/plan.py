"""The plan of a job: a node for every pod of its gangs, all or nothing.

Trainers and rollouts are placed together, by their links (search.py); each further gang by its own links and its link to the trainer of rank 0;
pools, which exchange next to nothing with them, near that trainer. Each is placed in what those before it have left. If that does not work, the
order is reversed, and then every role gets a part of the nodes, so that all fit (sharing.py).

Pools are at the nearest nodes to the trainer of rank 0, which asks them, and of equally near ones the fullest. Spares are in what the rest of the job
has left: where none of its trainers is, so that a lost node does not take a spare with it, and near that trainer, whose neighbours they may have to
replace.

With spec.scheduling.requiredLevel one domain of a topology level has to hold a whole gang.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rljob_api import names
from rljob_placement.cluster import Cluster, Node
from rljob_placement.explain import lacking
from rljob_placement.gang import Demand, Gang, Placement, Pool, Stay
from rljob_placement.search import search
from rljob_placement.servers import place_servers
from rljob_placement.sharing import share
from rljob_placement.space import capacity, common, refusal

Path = tuple[str, ...]


def domains(cluster: Cluster, gang: Gang, stay: Stay) -> list[Cluster]:
    """Domains that may hold the gang, the fullest first, so that the others stay free for larger ones. Pods that stay are not moved: they choose the
    domain, or the domains, if they are in several since the level was not required then."""
    by_path = dict[Path, list[Node]]()
    for node in cluster.nodes:
        path = tuple(node.labels.get(key, "") for key in gang.levels[: gang.within])
        if all(path):
            by_path.setdefault(path, []).append(node)
    there = {*_staying(stay)}
    chosen = [nodes for nodes in by_path.values() if any(node.name in there for node in nodes)]
    if chosen:
        return [Cluster(tuple(node for nodes in chosen for node in nodes))]
    return sorted((Cluster(tuple(nodes)) for nodes in by_path.values()), key=lambda part: trainers_in(part, gang))


def trainers_in(cluster: Cluster, gang: Gang) -> int:
    """How many trainers it has capacity for."""
    return sum(capacity(n, gang.trainer) for n in cluster.nodes if not refusal(n, gang, gang.trainer))


def _staying(stay: Stay) -> Iterator[str]:
    yield from stay.trainers
    for numbered in (stay.ranks, stay.rollouts, stay.spares, *stay.pools.values()):
        yield from numbered.values()
    for gang in stay.gangs.values():
        yield from _staying(gang)


ServerNodes = tuple[str, ...]
"""Nodes of the pods of a pool's servers."""


def place(
    cluster: Cluster, gang: Gang, pools: Sequence[Pool], stay: Stay, near: str = ""
) -> dict[str, ServerNodes] | Pool:
    """Nodes of the pods of every server, by pool; or the pool that does not fit. Pools with the least capacity are placed first.

    `near`: the node of the trainer of rank 0; empty: not known yet.
    """
    placed: dict[str, ServerNodes] = {}
    for pool in sorted(pools, key=lambda pool: sum(capacity_for(node, gang, pool.demand) for node in cluster.nodes)):
        servers = _placed(cluster, gang, pool, stay.servers(pool.name), near)
        if not all(servers):
            return pool
        placed[pool.name] = servers
        cluster = cluster.without(_served({pool.name: servers}).taken(gang, stay))
    return {pool.name: placed[pool.name] for pool in pools}


def _served(nodes: Mapping[str, ServerNodes]) -> Placement:
    """A plan of servers alone. `nodes`: by pool, or of the rollouts."""
    pools = {name: servers for name, servers in nodes.items() if name != names.ROLE_ROLLOUT}
    return Placement(pools=pools, rollouts=nodes.get(names.ROLE_ROLLOUT, ()))


def _placed(cluster: Cluster, gang: Gang, pool: Pool, stay: Mapping[int, str], near: str) -> ServerNodes:
    """Nodes of a pool's pods; empty for those that do not fit."""
    if pool.nodes > 1:
        servers = place_servers(cluster, gang, pool, stay, near, range(pool.replicas))
        return tuple(node for nodes in servers.values() for node in nodes)
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


Spares = tuple[str, ...]
"""Nodes by number of the spare; empty for one that does not fit."""


def spares(cluster: Cluster, gang: Gang, whole: Placement, stay: Mapping[int, str]) -> Spares:
    """`cluster`: what is left; `whole`: the nodes of the other pods; `stay`: nodes of spares that stay, by number."""
    nodes = {node.name: node for node in cluster.nodes}
    capacities = {name: capacity_for(node, gang, gang.trainer) for name, node in nodes.items()}
    taken, first = {*whole.trainers, *stay.values()}, nodes.get(whole.trainers[0])
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


POOLS = "pools"
"""The step of an order that places all pools. The other steps are the roles of gangs."""


def plan(cluster: Cluster, gang: Gang, stay: Stay | None = None) -> Placement:
    """The plan, or the problem of the first try. `stay`: pods that keep their nodes."""
    stay = stay or Stay()
    if not gang.within:
        return _planned(cluster, gang, stay)
    planned, level = Placement(problem="no node has its label"), gang.levels[gang.within - 1]
    for part in domains(cluster, gang, stay):
        planned = _planned(part, gang, stay)
        if not planned.problem:
            return planned
    return Placement(problem=f"no {level} has capacity for the whole gang: {planned.problem}")


def _planned(cluster: Cluster, gang: Gang, stay: Stay) -> Placement:
    placed = _without_spares(cluster, gang, stay)
    if placed.problem or not gang.spares:
        return placed
    return replace(placed, spares=spares(cluster.without(placed.taken(gang, stay)), gang, placed, stay.spares))


def _without_spares(cluster: Cluster, gang: Gang, stay: Stay) -> Placement:
    if not gang.servers and not gang.gangs:
        return search(cluster, gang, stay)
    tried = list[Placement]()
    for attempt in _attempts(cluster, gang, stay):
        if not attempt.problem:
            return _with_further(cluster, gang, stay, attempt)
        tried.append(attempt)
    return tried[0]


def _with_further(cluster: Cluster, gang: Gang, stay: Stay, minimum: Placement) -> Placement:
    """The plan with further rollouts, as far as they fit."""
    others = Placement(gangs=minimum.gangs, pools=minimum.pools)
    if gang.nodes == 1:
        whole = search(cluster.without(others.taken(gang, stay)), gang, stay)
        return replace(whole, gangs=minimum.gangs, pools=minimum.pools)
    first = gang.minimum // gang.nodes
    pool = Pool(names.ROLE_ROLLOUT, gang.rollouts // gang.nodes, gang.rollout, gang.nodes)
    left, numbers = cluster.without(minimum.taken(gang, stay)), range(first, pool.replicas)
    further = place_servers(left, gang, pool, stay.rollouts, minimum.trainers[0], numbers)
    return replace(minimum, rollouts=(*minimum.rollouts, *(node for nodes in further.values() for node in nodes)))


def _attempts(cluster: Cluster, gang: Gang, stay: Stay) -> Iterator[Placement]:
    """Plans with no more rollouts than the minimum: in order from the trainers on, in the reverse order, and with a part of the nodes for each
    role."""
    steps = (names.ROLE_TRAINER, *gang.gangs, *([POOLS] if gang.servers else []))
    yield _in_order(cluster, gang, stay, steps)
    yield _in_order(cluster, gang, stay, steps[::-1])
    if shares := share(cluster, gang, stay):
        yield _in_parts(shares, gang, stay)


def _in_order(cluster: Cluster, gang: Gang, stay: Stay, order: Sequence[str]) -> Placement:
    """Places one step after another, each in what is left."""
    joined = Placement()
    for step in order:
        rest = cluster.without(joined.taken(gang, stay))
        part = _step(rest, gang, stay, step, joined.trainers[0] if joined.trainers else "")
        if part.problem:
            return Placement(
                problem=f"alongside the job's other pods {part.problem}" if step != order[0] else part.problem
            )
        joined = _joined(joined, part)
    return joined


def _in_parts(shares: Mapping[str, Cluster], gang: Gang, stay: Stay) -> Placement:
    """Places each role in its part of the nodes, and trainers and rollouts together in theirs."""
    both = shares[names.ROLE_TRAINER]
    both = both.joined(shares[names.ROLE_ROLLOUT]) if gang.nodes == 1 else both
    joined = _step(both, gang, stay, names.ROLE_TRAINER, "")
    for role in gang.gangs:
        joined = _joined(joined, _step(shares[role], gang, stay, role, joined.trainers[0]))
    for pool in gang.servers:
        joined = _joined(joined, _pools(shares[pool.name], gang, [pool], stay, joined.trainers[0]))
    return joined


def _joined(before: Placement, part: Placement) -> Placement:
    return replace(
        before,
        trainers=before.trainers or part.trainers,
        rollouts=before.rollouts or part.rollouts,
        pools={**before.pools, **part.pools},
        gangs={**before.gangs, **part.gangs},
        problem=before.problem or part.problem,
    )


def _step(rest: Cluster, gang: Gang, stay: Stay, step: str, first: str) -> Placement:
    """Places one step. `first`: the node of the trainer of rank 0; empty: not known yet."""
    if step == names.ROLE_TRAINER:
        return search(rest, _searched(gang), stay)
    if step == POOLS:
        return _pools(rest, gang, gang.servers, stay, first)
    own, there = gang.gangs[step], stay.gangs.get(step, Stay())
    if any(node.name == first for node in rest.nodes):
        placed = search(rest, own, replace(there, rollouts={0: first}), step)
    else:
        placed = search(rest, replace(own, rollouts=0, minimum=0), there, step)
    return placed if placed.problem else Placement(gangs={step: placed.trainers})


def _searched(gang: Gang) -> Gang:
    """The gang with the rollouts that are placed with its trainers: those of the minimum, if each is one pod."""
    minimum = gang.minimum if gang.nodes == 1 else 0
    return replace(gang, rollouts=minimum, minimum=minimum)


def _pools(rest: Cluster, gang: Gang, pools: Sequence[Pool], stay: Stay, first: str) -> Placement:
    placed = place(rest, gang, pools, stay, near=first)
    if not isinstance(placed, Pool):
        return _served(placed)
    wanted = placed.pods - sum(number < placed.pods for number in stay.servers(placed.name))
    return Placement(problem=lacking(rest, gang, placed.name, placed.demand, wanted))
