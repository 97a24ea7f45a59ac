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
from rljob_operator.api import Key, Object
from rljob_operator.placement.usage import Usage, parse_usage
from rljob_operator.pods import parse_node, parse_pod
from rljob_operator.reports import Note
from rljob_operator.snapshot import Node, Pod
from rljob_operator.store import Store, bare, key_of, same_but_version

CHILD_KINDS = ("NetworkPolicy", "Service", "ServiceAccount", "Role", "RoleBinding", "StatefulSet")
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


class Stores:
    """`clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.jobs: Store[SeenJob] = Store(_job, _job_matters, group=key_of)
        self.pods: Store[Pod] = Store(lambda obj, _: parse_pod(obj))
        self.nodes: Store[Node] = Store(lambda obj, _: parse_node(obj), group=key_of)
        self.usage: Store[Usage] = Store(lambda obj, _: parse_usage(obj), lambda a, b: False, group=lambda obj: None)
        self.config_maps: Store[Note] = Store(reports.keeper(clock), reports.matters)
        self.children: dict[str, Store[Object]] = {
            kind: Store(lambda obj, _: bare(obj, "status"), lambda a, b: not same_but_version(a, b))
            for kind in (*CHILD_KINDS, *UNWATCHED)
        }

        self._by_kind: dict[str, Store[Any]] = {
            "RLJob": self.jobs,
            "Pod": self.pods,
            "Node": self.nodes,
            "ConfigMap": self.config_maps,
            **self.children,
        }

    def of_kind(self, kind: str) -> Store[Any]:
        return self._by_kind[kind]

    def put(self, obj: Object) -> None:
        """What the API server has just answered."""
        self.of_kind(obj["kind"]).put(obj)

    def jobs_of(self, kind: str, groups: set[Key]) -> set[Key]:
        """Whose jobs a change of these groups concerns."""
        if kind != "Node":
            return groups
        nodes = {name for _, name in groups}
        return self.pods.groups_of(lambda pod: pod.node in nodes)

    def children_of(self, job: Key) -> dict[tuple[str, str], Object]:
        """By kind and name."""
        found = {("ConfigMap", name): kept.value.object for name, kept in self.config_maps.of(job).items()}
        for kind, store in self.children.items():
            found |= {(kind, name): kept.value for name, kept in store.of(job).items()}
        return found


def _job(obj: Object, before: SeenJob | None) -> SeenJob:
    raw = obj.get("spec") or {}
    same = before is not None and before.verdict.raw == raw
    return SeenJob(bare(obj), before.verdict if before and same else Verdict(raw, obj["metadata"]["name"]))


def _job_matters(before: SeenJob, after: SeenJob) -> bool:
    """Our own status writes echo, and are no news: they were put here when they were answered."""
    return not same_but_version(before.object, after.object)
