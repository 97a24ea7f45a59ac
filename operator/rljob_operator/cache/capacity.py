"""Free capacity of the cluster, kept up to date with every change of a node, a pod or a job, so that nobody has to add it up."""

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_api.quantity import Thousandths, add
from rljob_api.status_parts import PlacementStatus
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.cache.nodes import CachedNode, Usage
from rljob_operator.kube.api import Key, Object
from rljob_placement.cluster import Cluster, less
from rljob_placement.cluster import Node as SchedulableNode

Taken = Mapping[str, Thousandths]
"""Resources by node."""


class Ledger:
    """Sums of entries by node. Entries are replaced one by one."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Taken] = {}
        self._sums: dict[str, Thousandths] = {}

    def on(self, node: str) -> Thousandths:
        return self._sums.get(node, {})

    def entry(self, key: Hashable) -> Taken:
        return self._entries.get(key, {})

    def replace(self, entries: Mapping[Hashable, Taken]) -> dict[str, Thousandths]:
        """Replaces the entries with these keys, empty ones by none. Returns by how much the sums have changed, where they have."""
        change: dict[str, Thousandths] = {}
        for key, taken in entries.items():
            for node, amounts in self._entries.pop(key, {}).items():
                change[node] = add(change.get(node, {}), {name: -amount for name, amount in amounts.items()})
            for node, amounts in taken.items():
                change[node] = add(change.get(node, {}), amounts)
            if taken:
                self._entries[key] = taken
        change = {node: amounts for node, amounts in change.items() if any(amounts.values())}
        for node, amounts in change.items():
            self._sums[node] = {name: amount for name, amount in add(self.on(node), amounts).items() if amount}
            if not self._sums[node]:
                del self._sums[node]
        return change


class Capacity:
    """What is free on each node: its allocatable resources less what pods on it request, what assigned pods on their way to it will request, and what
    the scheduler has promised and no status holds yet."""

    def __init__(self, nodes: Cache[CachedNode], usage: Cache[Usage], jobs: Cache[CachedJob]) -> None:
        self._usage = usage
        self._nodes: dict[str, SchedulableNode] = {}
        """As if nothing ran on them."""
        self._free: dict[str, SchedulableNode] = {}
        """Less what is taken, for nodes that were asked for since their last change."""
        self._taken = Ledger()
        self._placements: dict[Key, Object] = {}
        """The placement of each job with one, as its status holds it."""
        self._pods: dict[Key, list[Key]] = {}
        """The assigned pods of each job with a placement."""
        self._assigned: dict[Key, dict[Key, list[tuple[str, Thousandths]]]] = {}
        """Nodes and requests of assigned pods, by pod and job."""
        self._promised: dict[Key, Taken] = {}
        """What jobs were promised."""
        self._changed: dict[str, int] = {}
        """By node, the version with which it changed, oldest first."""
        self.version = 0
        self._on_growth: Callable[[], None] = nothing
        nodes.follow(self._node_changed)
        usage.follow(self._pod_changed)
        jobs.follow(self._job_changed)

    def on_growth(self, call: Callable[[], None]) -> None:
        """`call` is called whenever a node may offer more than before, whatever the cause."""
        self._on_growth = call

    def cluster(self, but: Key | None = None) -> Cluster:
        """All nodes with what is free on them; `but`: a job whose promise does not count."""
        nodes = Cluster(tuple(node for node in map(self.free, self._nodes) if node))
        own = self._promised.get(but, {}) if but else {}
        return nodes.without({node: {name: -v for name, v in amounts.items()} for node, amounts in own.items()})

    def free(self, name: str) -> SchedulableNode | None:
        """The node with what is free on it; None: there is no such node."""
        if name not in self._free and name in self._nodes:
            self._free[name] = less(self._nodes[name], self._taken.on(name))
        return self._free.get(name)

    def changed_since(self, version: int) -> list[str]:
        """Names of the nodes that have changed after this version."""
        newest_first = reversed(self._changed.items())
        return [name for name, changed in itertools.takewhile(lambda change: change[1] > version, newest_first)]

    def promise(self, job: Key, taken: Taken) -> None:
        """Counts what a job will take in place of what it was promised before."""
        self._promised.pop(job, None)
        if taken:
            self._promised[job] = taken
        self._replace({("promised", job): taken})

    def counted(self, pod: Key) -> Taken:
        """What a pod takes, or will take where it is assigned to, by node."""
        by_node = dict[str, Thousandths]()
        for key in (pod, *((job, pod) for job in self._assigned.get(pod, ()))):
            by_node |= {node: add(by_node.get(node, {}), amounts) for node, amounts in self._taken.entry(key).items()}
        return by_node

    def held(self, job: Key, pods: Iterable[Key], but: Collection[Key] = ()) -> Taken:
        """What a job's pods take, or will take where they are assigned to, by node. `pods`: those that exist; `but`: those that do not count."""
        by_node = dict[str, Thousandths]()
        for pod in {*pods, *self._pods.get(job, ())}.difference(but):
            for entry in (self._taken.entry(pod), self._taken.entry((job, pod))):
                by_node |= {node: add(by_node.get(node, {}), amounts) for node, amounts in entry.items()}
        return by_node

    def announce(self) -> None:
        """Asks for an offer of the capacity, as if it had grown."""
        self._on_growth()

    def break_promises(self) -> None:
        """Drops all promises: who made them has forgotten them."""
        for job in list(self._promised):
            self.promise(job, {})

    def _node_changed(self, key: Key, node: CachedNode | None) -> None:
        name = key[1]
        if node and self._nodes.get(name) == node.schedulable:
            return
        self._nodes.pop(name, None)
        if node:
            self._nodes[name] = node.schedulable
        self._touch(name)
        if node:
            self._on_growth()

    def _pod_changed(self, pod: Key, usage: Usage | None) -> None:
        entries: dict[Hashable, Taken] = {pod: {usage.node: usage.requests} if usage and usage.requests else {}}
        entries |= {
            (job, pod): self._arriving(pod, requested) for job, requested in self._assigned.get(pod, {}).items()
        }
        self._replace(entries)

    def _job_changed(self, key: Key, job: CachedJob | None) -> None:
        """Compares unparsed statuses first, since most versions of a job differ in something else."""
        placement = _placement(job) if job else None
        if placement == self._placements.get(key):
            return
        entries: dict[Hashable, Taken] = {(key, pod): {} for pod in self._unassign(key)}
        if job and placement:
            self._placements[key], self._pods[key] = placement, []
            for pod, requested in _assignments(job).items():
                self._pods[key].append(pod)
                self._assigned.setdefault(pod, {})[key] = requested
                entries[key, pod] = self._arriving(pod, requested)
        self._replace(entries)

    def _unassign(self, job: Key) -> list[Key]:
        """Forgets the assignments of a job. Returns its pods that had one."""
        self._placements.pop(job, None)
        pods = self._pods.pop(job, [])
        for pod in pods:
            del self._assigned[pod][job]
            if not self._assigned[pod]:
                del self._assigned[pod]
        return pods

    def _arriving(self, pod: Key, assigned: list[tuple[str, Thousandths]]) -> Taken:
        """What an assigned pod will take, as far as no pod of the same name takes it there already.

        A pod that still terminates on another node has not arrived. One that terminates on the assigned node will have freed its requests when its
        successor arrives, since a StatefulSet has one pod of a name at a time.
        """
        seen, taken = self._usage.get(pod), dict[str, Thousandths]()
        for node, wanted in assigned:
            there = (seen.value.requests if seen and seen.value.node == node else None) or {}
            missing = {name: v - there.get(name, 0) for name, v in wanted.items() if v > there.get(name, 0)}
            if missing:
                taken[node] = add(taken.get(node, {}), missing)
        return taken

    def _replace(self, entries: Mapping[Hashable, Taken]) -> None:
        change = self._taken.replace(entries)
        for node in change:
            self._touch(node)
        if any(amount < 0 for amounts in change.values() for amount in amounts.values()):
            self._on_growth()

    def _touch(self, node: str) -> None:
        self._free.pop(node, None)
        self._changed.pop(node, None)
        if node in self._nodes:
            self.version += 1
            self._changed[node] = self.version


def _placement(job: CachedJob) -> Object | None:
    """The placement in a job's unparsed status; None: the job has none, or is being deleted."""
    status = job.object.get("status")
    placement = status.get("placement") if isinstance(status, dict) else None
    return None if "deletionTimestamp" in job.object["metadata"] else placement


def _assignments(job: CachedJob) -> dict[Key, list[tuple[str, Thousandths]]]:
    """Nodes and requests of the job's assigned pods, by pod."""
    by_pod = dict[Key, list[tuple[str, Thousandths]]]()
    placement = (job.readable_status and job.readable_status.placement) or PlacementStatus()
    for assignment in placement.assignments:
        requests = placement.requests.get(names.role_of(job.meta.name, assignment.pod), {})
        by_pod.setdefault((job.meta.namespace, assignment.pod), []).append((assignment.node, requests))
    return by_pod
