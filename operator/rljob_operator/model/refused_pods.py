"""Pods that a quota, for example, keeps their StatefulSets from creating: which of them a job waits for, and which need no node."""

from collections.abc import Iterator

from rljob_api import names
from rljob_api.sizing.layout import required_pods
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import target
from rljob_operator.model.snapshot import Snapshot, Target, is_open


def lacks_pods(s: Snapshot) -> bool:
    """Whether the job could not use nodes: its pods may not start, or its gang is refused by a quota, for example."""
    return s.lacks_children or (not is_open(s.status.attempt) and bool(refused_roles(s)))


def refused_roles(s: Snapshot) -> list[str]:
    """Roles whose pods are not created although the gang cannot do without one of them. Others, such as rollouts beyond `minReplicas`, are no reason
    to wait."""
    wanted = target(s, s.status) if s.uncreated else None
    if wanted is None:
        return []
    required = required_pods(wanted.spec)
    needed = {role: wanted.ahead.get(role, [])[: required.get(role, 0)] for role in s.uncreated}
    return [role for role, ordinals in needed.items() if any(s.at(role, ordinal) is None for ordinal in ordinals)]


def dispensable_pods(s: Snapshot) -> frozenset[str]:
    """Names of pods that need no node now, since they are refused and the gang can do without them: with each, the pods of its server of several that
    are on no node yet."""
    wanted = target(s, s.status) if s.uncreated else None
    if wanted is None:
        return frozenset()
    refused = set(_refused(s, wanted))
    servers = [{(one.role, ordinal) for ordinal in one.ordinals} for one in wanted.servers]
    useless = refused.union(*(parts for parts in servers if parts & refused))
    return frozenset(names.pod(s.job.name, *one) for one in useless if not _has_node(s.at(*one)))


def _refused(s: Snapshot, wanted: Target) -> Iterator[tuple[str, int]]:
    """Roles and ordinals of refused pods without which the gang can be."""
    required = required_pods(wanted.spec)
    for role in s.uncreated:
        beyond = wanted.ahead.get(role, [])[required.get(role, 0) :]
        yield from ((role, ordinal) for ordinal in beyond if s.at(role, ordinal) is None)


def _has_node(pod: Pod | None) -> bool:
    return pod is not None and bool(pod.node)
