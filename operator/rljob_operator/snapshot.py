"""Everything that was observed of one job, as values: the only input of `decide` and `render`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rljob_api import names, reasons
from rljob_api.placement.cluster import Node as Place
from rljob_api.protocol import Control, Member, Report
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import LifecycleSpec
from rljob_api.status import Attempt, JobStatus, RLJobMeta
from rljob_api.violation import Violation

if TYPE_CHECKING:
    from rljob_operator.placement.turn import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What matters of one pod."""

    name: str
    uid: str
    role: str
    ordinal: int
    node: str = ""
    """Where it is bound to; empty: nowhere yet."""
    ip: str = ""
    phase: str = "Pending"
    ready: bool = False
    running: bool = False
    """Our container has a live process."""
    deleting: bool = False
    disrupted: str = ""
    """Message of the DisruptionTarget condition, when it is true."""
    lost_since: float | None = None
    """Since when its node has not answered, by the cluster's clock; 0 if the node does not exist any more."""
    out_of_service: bool = False
    """Its node is tainted out-of-service."""
    waiting: str = ""
    """Why the container does not run, such as `ImagePullBackOff: ...`."""
    exited: str = ""
    """How the container ended last, such as `OOMKilled (exit code 137)`."""
    unschedulable: str = ""
    """The scheduler's message."""
    template_hash: str = ""
    gates: tuple[str, ...] = ()
    """Scheduling gates that are left."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """While it is gated."""
    released: float | None = None
    """When we released it to its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What matters of one node."""

    name: str
    place: Place
    """What it offers to pods, empty."""
    lost_since: float | None = None
    """Since when it has not answered, by the cluster's clock."""
    out_of_service: bool = False
    """Somebody vouches by a taint that nothing runs there any more."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One job at one moment."""

    job: RLJobMeta
    spec: RLJobSpec | None
    """None: it has violations."""
    violations: tuple[Violation, ...] = ()
    spec_suspend: bool = False
    status: JobStatus = field(default_factory=JobStatus)
    pods: tuple[Pod, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    """By pod name; only those that could be parsed and speak our protocol."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """By pod name: what is wrong with its report."""
    control: Control | None = None
    """As published last."""
    children: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Live objects with this job's label, by kind and name."""
    conflicts: tuple[str, ...] = ()
    """Children that could not be written, because their names belong to others."""
    beat_age: float | None = None
    """Seconds since the open attempt's heartbeat was seen to advance."""
    progress_interval: float = 30.0
    """Seconds between writes of progress alone."""
    network_policy: bool = True
    """Whether the job gets one."""
    fresh_token: str = ""
    """Random; becomes the rollout servers' token when the job has none."""
    verdict: "Verdict | None" = None
    """What placement answers to this job, if it asks."""
    now: float = 0.0

    @cached_property
    def trainers(self) -> tuple[Pod, ...]:
        return self._of(names.ROLE_TRAINER)

    @cached_property
    def rollouts(self) -> tuple[Pod, ...]:
        return self._of(names.ROLE_ROLLOUT)

    def _of(self, role: str) -> tuple[Pod, ...]:
        return tuple(sorted((p for p in self.pods if p.role == role), key=lambda p: p.ordinal))

    def pod(self, member: Member) -> Pod | None:
        """The pod that was this member, if it still exists."""
        return next((p for p in self.pods if p.uid == member.pod_uid), None)

    def report(self, of: Pod | Member) -> Report | None:
        """The pod's own word, also after it is gone; a report that another pod of that name left behind is not."""
        name, uid = (of.name, of.uid) if isinstance(of, Pod) else (of.pod, of.pod_uid)
        report = self.reports.get(name)
        return report if report and report.pod_uid == uid else None

    @property
    def lifecycle(self) -> LifecycleSpec:
        """The limits in force: those of the newest spec that is valid."""
        spec = self.spec or (self.control.spec if self.control else None)
        return spec.lifecycle if spec else LifecycleSpec()

    def spec_of(self, attempt: Attempt | None) -> RLJobSpec | None:
        """An open attempt keeps the spec it was published with, but for the number of rollouts; otherwise the job's own. One that was not
        published before the spec became invalid is told to stop, which takes no more than a former spec."""
        if attempt is None or attempt.closed or self.control is None:
            return self.spec
        published = self.control.attempt == attempt.number
        return self._published if published or self.spec is None else self.spec

    def is_void(self, attempt: Attempt | None) -> bool:
        """An open one that was written, but not published before the spec changed, or whose word somebody deleted when it had: its members
        would be told a spec that their pods were not made for, perhaps one for more or fewer of them."""
        if attempt is None or attempt.closed:
            return False
        spec = self.spec_of(attempt)
        unheard = self.control is not None and self.control.attempt < attempt.number
        misfit = spec is not None and spec.trainer.nodes != len(attempt.members)
        return (
            misfit or (unheard and attempt.generation != self.job.generation) or attempt.reason == reasons.SPEC_CHANGED
        )

    @cached_property
    def _published(self) -> RLJobSpec | None:
        spec = self.control.spec if self.control else None
        return scaled(spec, self.spec.rollout.replicas) if spec and self.spec else spec


def scales(spec: RLJobSpec) -> bool:
    """Whether rollouts come and go while an attempt runs. A pod group of Kueue keeps the number of pods that it was admitted with."""
    return spec.scheduling.backend != "kueue"


def scaled(spec: RLJobSpec, replicas: int) -> RLJobSpec:
    """With so many rollouts, or as many as its trainers wait for."""
    if not scales(spec):
        return spec
    r = spec.rollout
    replicas = max(replicas, r.required)
    return spec.model_copy(update={"rollout": r.model_copy(update={"replicas": replicas})})
