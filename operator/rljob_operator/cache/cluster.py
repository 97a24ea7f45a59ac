"""The caches of all kinds."""

from collections.abc import Callable, Set
from functools import partial
from typing import Any

from rljob_api.job_policy import DEFAULT_POLICY, JobPolicy
from rljob_operator.cache import jobs, reports
from rljob_operator.cache.cache import Cache, key_of, same_but_version, strip_managed_fields
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.cache.nodes import Node, parse_node
from rljob_operator.cache.pods import Pod, is_of_a_job, parse_pod
from rljob_operator.cache.reports import CachedConfigMap
from rljob_operator.cache.usage import Usage, parse_usage
from rljob_operator.kube.api import Key, Object

ROOM: Key = ("", "room")
"""The group of a pod that has given its place back."""
CHILD_KINDS = ("NetworkPolicy", "ServiceAccount", "Role", "RoleBinding", "StatefulSet")
"""All but ConfigMaps, which have a cache of their own."""
UNWATCHED = ("PodGroup",)
"""Of which only our own writes and reads are known: not every cluster has the kind."""


class Pods:
    """Everybody's pods, for what they use, and ours, for what they are to their jobs. One watch feeds both."""

    def __init__(self, ours: Cache[Pod], usage: Cache[Usage]) -> None:
        self._ours, self._usage = ours, usage

    def put(self, obj: Object) -> set[Key]:
        """A pod that is new gives no place back."""
        new = self._usage.get(key_of(obj)) is None
        room = self._usage.put(obj)
        return (set() if new else room) | (self._ours.put(obj) if is_of_a_job(obj) else self._ours.discard(obj))

    def remove(self, obj: Object) -> set[Key]:
        return self._usage.remove(obj) | self._ours.remove(obj)

    def delete(self, key: Key) -> set[Key]:
        return self._usage.delete(key) | self._ours.delete(key)

    def prune(self, listed: Set[Key], version: str, namespace: str | None) -> set[Key]:
        return self._usage.prune(listed, version, namespace) | self._ours.prune(listed, version, namespace)


class ClusterCache:
    """`clock`: seconds since the epoch. `policy`: what the administrator sets for all jobs."""

    def __init__(self, clock: Callable[[], float], policy: JobPolicy = DEFAULT_POLICY) -> None:
        self.jobs: Cache[CachedJob] = Cache(partial(jobs.cached, policy=policy), jobs.predicate, group=key_of)
        self.pods: Cache[Pod] = Cache(lambda obj, _: parse_pod(obj))
        self.nodes: Cache[Node] = Cache(lambda obj, _: parse_node(obj), group=key_of)
        self.usage: Cache[Usage] = Cache(lambda obj, _: parse_usage(obj), Usage.shrinks, group=lambda obj: ROOM)
        self.config_maps: Cache[CachedConfigMap] = Cache(reports.cached(clock), reports.predicate)
        self.children: dict[str, Cache[Object]] = {
            kind: Cache(lambda obj, _: strip_managed_fields(obj, "status"), lambda a, b: not same_but_version(a, b))
            for kind in (*CHILD_KINDS, *UNWATCHED)
        }
        self._by_kind: dict[str, Cache[Any] | Pods] = {
            "RLJob": self.jobs,
            "Pod": Pods(self.pods, self.usage),
            "Node": self.nodes,
            "ConfigMap": self.config_maps,
            **self.children,
        }

    def of_kind(self, kind: str) -> Cache[Any] | Pods:
        return self._by_kind[kind]

    def put(self, obj: Object) -> None:
        """What the API server has just answered."""
        self.of_kind(obj["kind"]).put(obj)

    def forget(self, job: Key) -> None:
        """Children that nobody watches, and which went with their job."""
        for kind in UNWATCHED:
            for child in list(self.children[kind].of(job)):
                self.children[kind].delete(child)

    def jobs_of(self, kind: str, groups: set[Key]) -> set[Key]:
        """Whose jobs a change of these groups concerns."""
        if kind != "Node":
            return groups - {ROOM}
        nodes = {name for _, name in groups}
        if not nodes:  # a heartbeat, of which there are many
            return set()
        return self.pods.groups_of(lambda pod: pod.node in nodes)

    def waiting(self) -> set[Key]:
        """Jobs that have no room, or not for all their rollouts."""
        return self.jobs.groups_of(lambda job: job.lacks_room)

    def children_of(self, job: Key) -> dict[tuple[str, str], Object]:
        """By kind and name."""
        found = {("ConfigMap", name): entry.value.object for (_, name), entry in self.config_maps.of(job).items()}
        for kind, store in self.children.items():
            found |= {(kind, name): entry.value for (_, name), entry in store.of(job).items()}
        return found
