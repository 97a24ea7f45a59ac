"""The caches of all kinds, and which jobs a change in one of them concerns."""

import asyncio
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from rljob_api import backends
from rljob_api.callbacks import nothing
from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_api.protocol import Control
from rljob_api.quantity import Thousandths, add
from rljob_operator.cache import jobs, reports
from rljob_operator.cache.cache import Cache, key_of, same_but_version, strip_managed_fields
from rljob_operator.cache.capacity import Capacity
from rljob_operator.cache.deleted_pods import DeletedPods
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.cache.nodes import CachedNode, Usage, parse_node, parse_usage
from rljob_operator.cache.pods import FailedPods, Pod, is_of_a_job, parse_pod
from rljob_operator.cache.reports import CachedConfigMap
from rljob_operator.kube.api import Key, Object, kind_of
from rljob_placement.devices import NOT_LISTED, Devices

CAPACITY: Key = ("", "capacity")
"""Key in the work queue of a scheduling cycle for all jobs that wait: no job has an empty namespace."""
CHILD_KINDS = ("NetworkPolicy", "Service", "ServiceAccount", "Role", "RoleBinding", "StatefulSet")
"""Kinds of a job's children, without ConfigMaps, whose cache parses control messages and reports."""
SANDBOX_KINDS = ("SandboxTemplate", "SandboxWarmPool", "SandboxClaim")
"""Kinds of children that are watched where jobs.agentSandbox says that the cluster has them."""
UNWATCHED = tuple(map(str, backends.KINDS))
"""Kinds of children that are not watched, since not every cluster has them: only our own writes and reads enter their caches."""
NO_OFFER: tuple[Thousandths, Thousandths] = ({}, {})


class PodCache:
    """Two caches that one watch feeds: what every pod of the cluster takes of its node, and the pods of jobs. And what is remembered of those that
    failed."""

    def __init__(self, ours: Cache[Pod], usage: Cache[Usage], failed: FailedPods) -> None:
        self._ours, self._usage, self._failed = ours, usage, failed

    def put(self, obj: Object) -> set[Key]:
        self._usage.put(obj)
        return self._put(obj)

    def _put(self, obj: Object) -> set[Key]:
        changed = self._ours.put(obj)
        entry = self._ours.get(key_of(obj))
        if entry and entry.group:
            self._failed.note(entry.group, entry.value)
        return changed

    def remove(self, obj: Object) -> set[Key]:
        """The deletion has the pod's last state. Most often nothing else shows that it failed: its StatefulSet replaces such a pod at once."""
        self._put(obj)
        self._usage.remove(obj)
        return self._ours.remove(obj)

    def delete(self, key: Key) -> set[Key]:
        self._usage.delete(key)
        return self._ours.delete(key)

    def prune(self, listed: Set[Key], version: str, namespace: str | None) -> set[Key]:
        self._usage.prune(listed, version, namespace)
        return self._ours.prune(listed, version, namespace)


def _pod(obj: Object, _: Pod | None) -> Pod:
    return parse_pod(obj)


def _usage(obj: Object, _: Usage | None) -> Usage:
    return parse_usage(obj)


def _no_job(_: Object) -> Key | None:
    return None


def _child(obj: Object, _: Object | None) -> Object:
    return strip_managed_fields(obj, "status")


def _differ(one: Object, other: Object) -> bool:
    return not same_but_version(one, other)


class ClusterCache:
    """The caches of all kinds. `clock`: seconds since the epoch. `policy`: what the administrator sets for all jobs."""

    def __init__(self, clock: Callable[[], float], policy: JobPolicy = DEFAULT_POLICY) -> None:
        self.jobs: Cache[CachedJob] = Cache(
            partial(jobs.transform, policy=policy), jobs.predicate, group=key_of, wanted=jobs.is_run_here
        )
        self.pods: Cache[Pod] = Cache(_pod, wanted=is_of_a_job)
        self.clock, self.failed, self.deleted = clock, FailedPods(clock), DeletedPods()
        self._leave, self._requested = policy.leave_nodes, dict[str, str]()
        """By what nodes are left, and why objects ask for it, by node."""
        self.devices = Devices(problem=NOT_LISTED)
        """As the last look has seen them."""
        self._offers: dict[str, tuple[Thousandths, Thousandths]] = {}
        """Devices of each node by resource: those without the ones that are held by pods which nobody counts, and all."""
        self.nodes: Cache[CachedNode] = Cache(self._node, group=key_of)
        self.usage: Cache[Usage] = Cache(_usage, group=_no_job)
        self.config_maps: Cache[CachedConfigMap] = Cache(reports.transform(clock), reports.predicate)
        self.children: dict[str, Cache[Object]] = {
            kind: Cache(_child, _differ) for kind in (*CHILD_KINDS, *SANDBOX_KINDS, *UNWATCHED)
        }
        self.capacity = Capacity(self.nodes, self.usage, self.jobs)
        self._on_change: Callable[[str, set[Key]], None] = nothing
        self._by_kind: dict[str, Cache[Any] | PodCache] = {
            "RLJob": self.jobs,
            "Pod": PodCache(self.pods, self.usage, self.failed),
            "Node": self.nodes,
            "ConfigMap": self.config_maps,
            **self.children,
        }

    def of_kind(self, kind: str) -> Cache[Any] | PodCache:
        return self._by_kind[kind]

    def on_change(self, call: Callable[[str, set[Key]], None]) -> None:
        """`call` gets kind and groups of every change that an answer to us has made in a cache: the watch's event of it will change nothing."""
        self._on_change = call

    def on_jobs(self, jobs: set[Key]) -> None:
        """What these jobs depend on has changed, but for their objects."""
        self._on_change("RLJob", jobs)

    def put(self, obj: Object, control: Control | None = None) -> None:
        """Takes an object that the API server has just answered with. `control`: the control message in it, if it is known already."""
        kind = kind_of(obj)
        known = CachedConfigMap(strip_managed_fields(obj), control) if control else None
        self._on_change(kind, self.config_maps.put(obj, known) if known else self.of_kind(kind).put(obj))

    def request_nodes(self, requested: Mapping[str, str]) -> None:
        """Why objects ask for nodes to be left, by node: all that there are."""
        before, self._requested = self._requested, dict(requested)
        for name in before.keys() | requested.keys():
            self._on_change("Node", self.nodes.revise(("", name), self._with_request))

    def set_devices(self, devices: Devices) -> None:
        """What there is of devices now."""
        self.devices, before = devices, self._offers
        self._offers = {node: (amounts, amounts) for node, amounts in devices.nodes.items()}
        held = dict[tuple[Key | None, str], Thousandths]()
        for one in devices.allocations:
            held[one.pod, one.node] = add(held.get((one.pod, one.node), {}), one.amounts)
        for (pod, node), amounts in held.items():
            counted = self.capacity.counted(pod).get(node, {}) if pod else {}
            others = {name: min(counted.get(name, 0) - amount, 0) for name, amount in amounts.items()}
            free, size = self._offers[node]
            self._offers[node] = add(free, others), size
        for name in before.keys() | self._offers.keys():
            if before.get(name) == self._offers.get(name):
                continue
            self._on_change("Node", self.nodes.revise(("", name), self._with_offer))

    def _with_request(self, node: CachedNode) -> CachedNode:
        return node.requested(self._requested.get(node.name, ""))

    def _with_offer(self, node: CachedNode) -> CachedNode:
        return node.offering(*self._offers.get(node.name, NO_OFFER))

    async def validate(self) -> None:
        """Validates the small specs that nobody has needed yet, with a turn of the event loop after each: it takes milliseconds for one, and seconds
        for all jobs of a large cluster."""
        for job in list(self.jobs.values()):
            if job.validation.waits and job.validation.is_known:
                await asyncio.sleep(0)

    def offers(self, resource: str) -> bool:
        """Whether some node offers the resource itself, and not by devices."""
        return any(n.schedulable.size.get(resource) and resource not in n.devices for n in self.nodes.values())

    def _node(self, obj: Object, before: CachedNode | None) -> CachedNode:
        node = parse_node(obj, self._leave)
        why = self._requested.get(node.name)
        node = node.requested(why) if why else node
        return node.offering(*self._offers[node.name]) if node.name in self._offers else node

    def delete(self, kind: str, key: Key) -> None:
        """The API server has just answered that there is nothing under this name."""
        self._on_change(kind, self.of_kind(kind).delete(key))

    def forget(self, job: Key) -> None:
        """Drops what nothing reports to be gone with a job that was deleted: its unwatched children, and what is remembered of its pods."""
        self.failed.forget(job)
        self.deleted.forget(job)
        for kind in UNWATCHED:
            for child in list(self.children[kind].of(job)):
                self.children[kind].delete(child)

    def clear(self) -> None:
        """Forgets everything: another operator acts, and nobody tells us what vanishes meanwhile."""
        self.request_nodes({})
        self.set_devices(Devices(problem=NOT_LISTED))
        self.capacity.break_promises()
        self.failed.clear()
        self.deleted.clear()
        caches: tuple[Cache[Any], ...] = (self.jobs, self.pods, self.usage, self.config_maps, self.nodes)
        for cache in (*caches, *self.children.values()):
            cache.clear()

    def jobs_of(self, kind: str, groups: set[Key]) -> set[Key]:
        """Jobs to reconcile when something has changed for these groups of a kind's cache."""
        if kind != "Node":
            return groups
        nodes = {name for _, name in groups}
        if not nodes:  # most often a node's heartbeat: no job is looked for
            return set()
        return self.pods.groups_of(lambda pod: pod.node in nodes)

    def children_of(self, job: Key) -> dict[tuple[str, str], Object]:
        """All children of a job, by kind and name."""
        children = {("ConfigMap", name): entry.value.object for (_, name), entry in self.config_maps.of(job).items()}
        for kind, cache in self.children.items():
            children |= {(kind, name): entry.value for (_, name), entry in cache.of(job).items()}
        return children
