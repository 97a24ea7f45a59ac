"""Why a gang cannot be placed, in a scheduler's words: what is needed, how much capacity each level has, and why the other nodes are out.
And the report of a placement: where stages and rollouts are, and how many bytes per step cross each level."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rljob_api.quantity import rounded
from rljob_api.status_parts import Crossing, PlacementReport
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang, Placement, Stay
from rljob_placement.space import capacity, common, refusal

WHOLE = "the whole cluster"
"""In place of a domain, of pods that share none."""
DOMAINS = 4
"""Domains of a level that a message names, at most."""


def why(cluster: Cluster, gang: Gang, kept: int, staying: int, role: str) -> str:
    """One sentence for each role that lacks capacity, or one for both if each would fit alone. `role`: of the gang; `kept`, `staying`: numbers of
    trainers and rollouts that stay on their nodes."""
    roles = ((role, gang.trainer, gang.trainers - kept), ("rollout", gang.rollout, gang.minimum - staying))
    capacities = [_capacities(cluster, gang, demand) for _, demand, _ in roles]
    short = [
        _lack(cluster, gang, word, demand, wanted, capacity)
        for (word, demand, wanted), capacity in zip(roles, capacities, strict=True)
        if sum(capacity.values()) < wanted
    ]
    if short:
        return "; ".join(short)
    wanted = " and ".join(_pods(count, word, demand) for word, demand, count in roles)
    trainers, rollouts = (sum(capacity.values()) for capacity in capacities)
    return f"needs capacity for {wanted}; the cluster has it for {trainers} or for {rollouts}, not for both at once"


def lacking(cluster: Cluster, gang: Gang, word: str, demand: Demand, wanted: int) -> str:
    """A sentence that there is too little capacity for `wanted` pods of one role. `word`: the role's name."""
    return _lack(cluster, gang, word, demand, wanted, _capacities(cluster, gang, demand))


def lacking_further(cluster: Cluster, gang: Gang, plan: Placement) -> str:
    """A sentence why rollouts beyond the minimum have no place in a plan of which no pod was there before; empty: all of them have one."""
    if all(plan.rollouts):
        return ""
    rest = cluster.without(plan.taken(gang, Stay()))
    return lacking(rest, gang, "rollout", gang.rollout, gang.nodes)


def _capacities(cluster: Cluster, gang: Gang, demand: Demand) -> dict[str, int]:
    """Number of pods that fit onto each node, by its name."""
    return {n.name: 0 if refusal(n, gang, demand) else capacity(n, demand) for n in cluster.nodes}


def _pods(count: int, word: str, demand: Demand) -> str:
    return f"{count} {word} pod{'' if count == 1 else 's'} with {demand} each"


def _lack(cluster: Cluster, gang: Gang, word: str, demand: Demand, wanted: int, capacities: Mapping[str, int]) -> str:
    total = sum(capacities.values())
    text = f"needs capacity for {_pods(wanted, word, demand)} and the cluster has it for {total}"
    levels = [f"{key}: {_level(cluster, gang, i, capacities)}" for i, key in enumerate(gang.levels) if total]
    return "; ".join([text, *levels, _barred(cluster, gang, demand, capacities), *_too_large(cluster, demand)])


def _level(cluster: Cluster, gang: Gang, level: int, capacities: Mapping[str, int]) -> str:
    """Capacity by domain of a level: `b1/r1 has capacity for 3, b1/r2 for 2, 4 others for none`."""
    domains: Counter[str] = Counter()
    for node in cluster.nodes:
        path = [node.labels.get(key) for key in gang.levels[: level + 1]]
        if all(path):
            domains["/".join(p for p in path if p)] += capacities[node.name]
    named = [(name, count) for name, count in domains.most_common(DOMAINS) if count]
    text = ", ".join(f"{name} {'has capacity ' if not i else ''}for {count}" for i, (name, count) in enumerate(named))
    others = len(domains) - len(named)
    rest = sum(domains.values()) - sum(count for _, count in named)
    return text + (f", {others} other{'' if others == 1 else 's'} for {rest or 'none'}" if others else "")


def _barred(cluster: Cluster, gang: Gang, demand: Demand, capacities: Mapping[str, int]) -> str:
    """Counts of nodes without capacity, by reason: `0/12 nodes have capacity for such a pod: 8 insufficient nvidia.com/gpu, 4 cordoned`."""
    open_ = sum(1 for count in capacities.values() if count)
    reasons = Counter(refusal(n, gang, demand) or _short(n, demand) for n in cluster.nodes if not capacities[n.name])
    text = f"{open_}/{len(cluster.nodes)} nodes have capacity for such a pod"
    return text + (": " if reasons else "") + ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())


def _too_large(cluster: Cluster, demand: Demand) -> Iterator[str]:
    """Resources of which no node has enough, even when it is empty, so that waiting does not help: `no node has more than 23Gi memory`."""
    for name, each in demand.requests.items():
        most = max((node.size.get(name, 0) for node in cluster.nodes), default=0)
        if cluster.nodes and most < each:
            yield f"no node has more than {rounded(most)} {name}" if most else f"no node has {name}"


def _short(node: Node, demand: Demand) -> str:
    lacking = [name for name, each in demand.requests.items() if node.free.get(name, 0) < each]
    return "insufficient " + " and ".join(sorted(lacking))


Path = tuple[str, ...]
NODE = "node"


def report(cluster: Cluster, gang: Gang, plan: Placement) -> PlacementReport:
    """The report of a plan without a problem."""
    paths = {n.name: (*(n.labels.get(key, "") for key in gang.levels), n.name) for n in cluster.nodes}
    parts = [(gang, (*plan.trainers, *plan.rollouts))]
    parts += [(gang.gangs[role], (*nodes, plan.trainers[0])) for role, nodes in plan.gangs.items()]
    return PlacementReport(
        stages=_stages(gang, paths, plan.trainers),
        rollouts=_servers(paths, plan.rollouts, gang.nodes),
        spares=[_domain([paths[name]]) if name else "" for name in plan.spares],
        pools={pool.name: _servers(paths, plan.pools[pool.name], pool.nodes) for pool in gang.pools},
        gangs={role: _stages(gang.gangs[role], paths, nodes) for role, nodes in plan.gangs.items()},
        levels=_crossings(gang.levels, paths, parts),
    )


def _servers(paths: Mapping[str, Path], nodes: Sequence[str], each: int) -> list[str]:
    """The domain of each server; empty: not placed. `nodes`: by number of the pod, of which each server has so many."""
    servers = (nodes[i : i + each] for i in range(0, len(nodes), each))
    return [_domain([paths[name] for name in server]) or WHOLE if all(server) else "" for server in servers]


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
