"""The stores of all kinds, and what is kept of an RLJob."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.validate import violations
from rljob_api.violation import Violation
from rljob_operator import reports
from rljob_operator.api import Key, Listing, Object
from rljob_operator.placement.usage import Usage, parse_usage
from rljob_operator.pods import parse_node, parse_pod
from rljob_operator.reports import Note
from rljob_operator.snapshot import Node, Pod
from rljob_operator.store import Store, bare, is_ours, key_of, same_but_version

ROOM: Key = ("", "room")
"""The group of a pod that has given its place back."""
CHILD_KINDS = ("NetworkPolicy", "ServiceAccount", "Role", "RoleBinding", "StatefulSet")
"""Besides ConfigMaps, which have a store of their own."""
UNWATCHED = ("PodGroup",)
"""Of which only our own writes and reads are known: not every cluster has the kind."""
KNOWN_META = {
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "annotations",
}


@dataclass(eq=False)
class Verdict:
    """What a raw spec means. Worked out once, when somebody first asks."""

    raw: Object
    name: str

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(violations(self.raw, self.name))

    @cached_property
    def spec(self) -> RLJobSpec | None:
        return None if self.violations else RLJobSpec.model_validate(self.raw)


@dataclass(eq=False)
class SeenJob:
    """One version of an RLJob. A status that cannot be read is an error of the pass that asks for it: it is authoritative, so nobody guesses."""

    object: Object
    verdict: Verdict

    @cached_property
    def meta(self) -> RLJobMeta:
        return RLJobMeta.model_validate({k: v for k, v in self.object["metadata"].items() if k in KNOWN_META})

    @cached_property
    def status(self) -> JobStatus:
        return JobStatus.model_validate(self.object.get("status") or {})

    @property
    def lacks_room(self) -> bool:
        """By its status, unparsed: many jobs are asked often."""
        placement = (self.object.get("status") or {}).get("placement") or {}
        return bool(placement.get("problem")) or "" in placement.get("report", {}).get("rollouts", [])


class Pods:
    """Everybody's pods, for what they use, and ours, for what they are to their jobs. One watch feeds both."""

    def __init__(self, ours: Store[Pod], usage: Store[Usage]) -> None:
        self._ours, self._usage = ours, usage

    def put(self, obj: Object) -> set[Key]:
        """A pod that is new gives no place back."""
        new = self._usage.get(key_of(obj)) is None
        room = self._usage.put(obj)
        return (set() if new else room) | (self._ours.put(obj) if is_ours(obj) else self._ours.remove(obj))

    def remove(self, obj: Object) -> set[Key]:
        return self._usage.remove(obj) | self._ours.remove(obj)

    def lose(self, key: Key) -> set[Key]:
        return self._usage.lose(key) | self._ours.lose(key)

    def replace(self, listing: Listing, namespace: str | None) -> set[Key]:
        ours = Listing(listing.version, [obj for obj in listing.objects if is_ours(obj)])
        return self._usage.replace(listing, namespace) | self._ours.replace(ours, namespace)


class Stores:
    """`clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.jobs: Store[SeenJob] = Store(_job, _job_matters, group=key_of)
        self.pods: Store[Pod] = Store(lambda obj, _: parse_pod(obj))
        self.nodes: Store[Node] = Store(lambda obj, _: parse_node(obj), group=key_of)
        self.usage: Store[Usage] = Store(lambda obj, _: parse_usage(obj), Usage.shrinks, group=lambda obj: ROOM)
        self.config_maps: Store[Note] = Store(reports.keeper(clock), reports.matters)
        self.children: dict[str, Store[Object]] = {
            kind: Store(lambda obj, _: bare(obj, "status"), lambda a, b: not same_but_version(a, b))
            for kind in (*CHILD_KINDS, *UNWATCHED)
        }

        self._by_kind: dict[str, Store[Any] | Pods] = {
            "RLJob": self.jobs,
            "Pod": Pods(self.pods, self.usage),
            "Node": self.nodes,
            "ConfigMap": self.config_maps,
            **self.children,
        }

    def of_kind(self, kind: str) -> Store[Any] | Pods:
        return self._by_kind[kind]

    def put(self, obj: Object) -> None:
        """What the API server has just answered."""
        self.of_kind(obj["kind"]).put(obj)

    def forget(self, job: Key) -> None:
        """Children that nobody watches, and which went with their job."""
        for kind in UNWATCHED:
            for child in list(self.children[kind].of(job)):
                self.children[kind].lose(child)

    def jobs_of(self, kind: str, groups: set[Key]) -> set[Key]:
        """Whose jobs a change of these groups concerns."""
        if kind != "Node":
            return groups - {ROOM}
        nodes = {name for _, name in groups}
        return self.pods.groups_of(lambda pod: pod.node in nodes)

    def waiting(self) -> set[Key]:
        """Jobs that have no room, or not for all their rollouts."""
        return self.jobs.groups_of(lambda job: job.lacks_room)

    def children_of(self, job: Key) -> dict[tuple[str, str], Object]:
        """By kind and name."""
        found = {("ConfigMap", name): kept.value.object for (_, name), kept in self.config_maps.of(job).items()}
        for kind, store in self.children.items():
            found |= {(kind, name): kept.value for (_, name), kept in store.of(job).items()}
        return found


def _job(obj: Object, before: SeenJob | None) -> SeenJob:
    raw = obj.get("spec") or {}
    same = before is not None and before.verdict.raw == raw
    return SeenJob(bare(obj), before.verdict if before and same else Verdict(raw, obj["metadata"]["name"]))


def _job_matters(before: SeenJob, after: SeenJob) -> bool:
    """Our own status writes echo, and are no news: they were put here when they were answered."""
    return not same_but_version(before.object, after.object)
