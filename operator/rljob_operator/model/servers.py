"""Servers of several pods: which ordinals make up each, and which of them can answer.

Ordinals are not ranks here either. A server keeps its pods for its whole life; one whose name is held (see ordinals.py) is replaced by the lowest
ordinal that is free, at the same rank. Scaling down ends the servers of the highest ordinals, so that the StatefulSet can shrink; while an attempt is
open, those that are not whole go before them.
"""

from collections.abc import Collection, Iterable
from itertools import count

from rljob_api import names
from rljob_api.server_group import ServerGroup
from rljob_api.status_parts import ServerStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Server, Snapshot


def divide(
    known: Iterable[ServerStatus], role: str, size: tuple[int, int], held: Collection[int], kept: Collection[int] | None
) -> list[Server]:
    """The servers of a role, and the ordinals of their pods by rank.

    Args:
        known: servers of the status
        size: number of servers, and of pods of each
        held: ordinals that cannot be used
        kept: ordinals that stay if they are not held; None: all, since an attempt is open
    """
    servers, nodes = size
    stay = [one for one in known if one.role == role and len(one.ordinals) == nodes]
    stay = sorted(stay, key=lambda one: (kept is None and not one.parts, max(one.ordinals)))[:servers]
    places = {
        one.index: [i if i not in held and (kept is None or i in kept) else -1 for i in one.ordinals] for one in stay
    }
    fresh = (index for index in count() if index not in places)
    for _ in range(servers - len(stay)):
        places[next(fresh)] = [-1] * nodes
    taken = {i for ordinals in places.values() for i in ordinals}
    free = (i for i in count() if i not in taken and i not in held)
    return [
        Server(role, index, tuple(next(free) if i < 0 else i for i in ordinals)) for index, ordinals in places.items()
    ]


def group(job: str, server: ServerStatus) -> ServerGroup:
    """What its pods and the trainer are to know of the generation that runs."""
    return ServerGroup(
        name=names.server(job, server.role, server.index),
        generation=server.generation,
        parts=server.parts,
        master_port=names.server_port(server.generation),
        rpc_port=names.server_rpc_port(server.generation),
    )


def answering_head(s: Snapshot, server: ServerStatus) -> Pod | None:
    """The pod that answers for the server, if all of its pods are there; None: it cannot be asked."""
    pods = [s.pod(part) for part in server.parts]
    whole = bool(pods) and all(p and p.running and not p.deleting and p.lost_since is None for p in pods)
    return pods[0] if whole and pods[0] and pods[0].ready and pods[0].ip else None
