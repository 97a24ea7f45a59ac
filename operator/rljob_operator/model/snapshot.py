"""Everything that was observed of one job, as values: the only input of `decide` and `render`. It knows which spec is in force: the job's own, or the
one that an open attempt was published with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from rljob_api import names, reasons
from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_api.protocol import Control, Member, Progress, Report, ServiceReport
from rljob_api.rules import Violation
from rljob_api.server_group import ServerPart
from rljob_api.spec import RLJobSpec
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.model import RewardSpec
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status import Attempt, JobStatus, RLJobMeta
from rljob_api.status_parts import NodeStatus, ServerStatus
from rljob_operator.cache.pods import FailedPod, Pod
from rljob_operator.model.children import ChildProblem, controls
from rljob_operator.model.scheduling import SchedulingResult
from rljob_operator.times import seconds


def is_open(attempt: Attempt | None) -> bool:
    """Whether there is an attempt and it has not ended."""
    return attempt is not None and not attempt.ended_at


def scaled(spec: RLJobSpec, wanted: RLJobSpec) -> RLJobSpec:
    """The spec with as many rollouts and workers as another one wants, but no fewer rollouts than its trainers wait for. It neither gets nor loses
    its workers: what they run stays where its attempt began."""
    replicas = max(wanted.rollout.replicas, spec.rollout.required)
    workers = {role: pods.replicas for role, pods in wanted.workers.items()}
    changed = [role for role, pods in spec.workers.items() if workers.get(role, pods.replicas) != pods.replicas]
    if replicas == spec.rollout.replicas and not changed:  # a copy takes far longer
        return spec
    return sized(spec, replicas, workers)


def sized(spec: RLJobSpec, replicas: int, workers: Mapping[str, int]) -> RLJobSpec:
    """The spec with this number of rollout servers, and of workers by role."""
    rewards = [_with_workers(reward, workers.get(names.scorer_role(i))) for i, reward in enumerate(spec.rewards)]
    agent = spec.rollout.agent and _with_workers(spec.rollout.agent, workers.get(names.ROLE_WORKER))
    rollout = spec.rollout.model_copy(update={"replicas": replicas, "agent": agent})
    return spec.model_copy(update={"rollout": rollout, "rewards": rewards})


def _with_workers[S: (AgentSpec, RewardSpec)](section: S, replicas: int | None) -> S:
    """The section with this number of workers, if it has any; None: with those that it has."""
    if section.workers is None or replicas is None:
        return section
    return section.model_copy(update={"workers": section.workers.model_copy(update={"replicas": replicas})})


@dataclass(frozen=True, slots=True)
class Server:
    """The pods of one server of several."""

    role: str
    index: int
    """Number of the server in its role."""
    ordinals: tuple[int, ...]
    """Ordinals of its pods, by node rank."""


@dataclass(frozen=True, slots=True)
class Target:
    """The pods of an attempt, the open one or the next."""

    spec: RLJobSpec
    """The one in force."""
    ordinals: Mapping[str, list[int]]
    """Ordinals of the pods that are wanted, by role: of a gang its members, and then its spares."""
    ahead: Mapping[str, list[int]]
    """The same, with spares in place of members that the open attempt has lost."""
    servers: Sequence[Server]
    """Servers of several pods, whose ordinals are in this order."""
    status: tuple[Attempt | None, Sequence[NodeStatus], Sequence[ServerStatus], Mapping[str, int]]
    """What the ordinals were computed from: attempt, nodes, servers and numbers of workers of the status."""

    @property
    def members(self) -> dict[str, list[int]]:
        """Ordinals of the members, by role."""
        return {role: self.ordinals[role][:size] for role, size in self.spec.gang_sizes.items()}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One job at one moment."""

    job: RLJobMeta
    spec: RLJobSpec | None
    """The job's own spec, with the administrator's defaults; None: it breaks rules."""
    violations: tuple[Violation, ...] = ()
    spec_suspend: bool = False
    status: JobStatus = field(default_factory=JobStatus)
    pods: tuple[Pod, ...] = ()
    gpus: int = 0
    """GPUs that the job's pods hold."""
    failed: Mapping[str, FailedPod] = field(default_factory=dict)
    """The last failed pod of each name, which may be gone, see cache/pods.py."""
    reports: Mapping[str, Report] = field(default_factory=dict)
    """Reports by pod name; only those that can be read and have our protocol version."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Why a pod's report cannot be read, by pod name."""
    control: Control | None = None
    """The control message that was published last."""
    children: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Live objects with this job's label, by kind and name."""
    conflicts: tuple[ChildProblem, ...] = ()
    """Children that could not be written: their names belong to others, or the API server refuses them. And pods of which it refuses release or
    deletion."""
    uncreated: Mapping[str, str] = field(default_factory=dict)
    """Why pods have been missing for some time, by role, as far as that is known."""
    unstarted: Mapping[str, str] = field(default_factory=dict)
    """Why pods on nodes have not started for some time, by the pod's uid, as far as that is known."""
    heartbeat_age: float | None = None
    """Seconds since the open attempt's heartbeat last advanced; None: no attempt is open."""
    progress_interval: float = 30.0
    """Seconds between writes of progress alone."""
    policy: JobPolicy = DEFAULT_POLICY
    """What the administrator sets for all jobs."""
    network_policy: bool = True
    """Whether the job gets a NetworkPolicy."""
    fresh_token: str = ""
    """A random value, which becomes the rollout servers' token if the job needs a new one."""
    scheduling: SchedulingResult | None = None
    """Result of the `builtin` scheduler for this job; None: every pod has its node, or another scheduler places them."""
    preemptor: str = ""
    """Namespace and name of a job of higher priority that needs the job's nodes; empty: none does."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Why their owner wants nodes to be left, by node: of those that the job's pods are on, and those in status.nodes."""
    refuge: frozenset[str] | None = None
    """Bad nodes without which the whole gang has capacity; None: nobody asked."""
    now: float = 0.0
    """Seconds since the epoch."""

    @cached_property
    def templates(self) -> dict[tuple[bool, int, frozenset[str]], Mapping[str, dict[str, Any]]]:
        """What `render.template.newest_templates` has computed, by what it depends on: whether the spec is the published one, the token's number, and
        the nodes that are avoided."""
        return {}

    @cached_property
    def targets(self) -> list[Target]:
        """What `model.ordinals.target` has computed."""
        return []

    @cached_property
    def messages(self) -> dict[str, Control]:
        """Control messages that `render.channel.control` has made, by their text: what comes back as it was written need not be parsed."""
        return {}

    @cached_property
    def launchers(self) -> tuple[Pod, ...]:
        """Pods of the trainer and of other gangs."""
        return tuple(pod for pod in self.pods if names.is_model_role(pod.role))

    @cached_property
    def rollouts(self) -> tuple[Pod, ...]:
        return self.of(names.ROLE_ROLLOUT)

    @cached_property
    def servers(self) -> tuple[Pod, ...]:
        """Rollouts, pods of pools, workers of agents, and gateways: what is no member of an attempt."""
        return tuple(pod for pod in self.pods if not names.is_model_role(pod.role))

    @cached_property
    def placed(self) -> tuple[Pod, ...]:
        """Pods that the job's placement is about. What others hold keeps no place for the job, and nobody waits for them to leave."""
        return tuple(pod for pod in self.pods if names.is_placed(pod.role))

    def of(self, role: str) -> tuple[Pod, ...]:
        """Pods of a role, by ordinal."""
        return self._by_role.get(role, ())

    def at(self, role: str, ordinal: int) -> Pod | None:
        """The pod of a role with this ordinal."""
        return self._by_place.get((role, ordinal))

    def pod(self, member: Member | ServerPart) -> Pod | None:
        """The pod that was this member, or this part of a server, if it still exists."""
        return self._by_uid.get(member.pod_uid)

    def failed_pod(self, member: Member | ServerPart) -> Pod | None:
        """The pod that was this member, as it was last seen, if it has failed."""
        last = self.failed.get(member.pod)
        return last.pod if last and last.pod.uid == member.pod_uid else None

    def report(self, of: Pod | Member | ServerPart) -> Report | None:
        """The pod's own report, which outlives it. A report that another pod of the same name has left is ignored."""
        name, uid = (of.name, of.uid) if isinstance(of, Pod) else (of.pod, of.pod_uid)
        report = self.reports.get(name)
        return report if report and report.pod_uid == uid else None

    def progress_of(self, attempt: Attempt | None) -> Progress | None:
        """The progress that rank 0 reports for this attempt; None: nothing yet."""
        member = attempt.first if attempt else None
        report = self.report(member) if member else None
        if report is None or member is None or attempt is None:
            return None
        return report.progress if report.boot_id == member.boot_id and report.attempt == attempt.number else None

    @cached_property
    def _by_role(self) -> dict[str, tuple[Pod, ...]]:
        there = sorted(self.pods, key=lambda p: (p.role, p.ordinal))
        return {role: tuple(pods) for role, pods in groupby(there, key=lambda p: p.role)}

    @cached_property
    def _by_place(self) -> dict[tuple[str, int], Pod]:
        return {(p.role, p.ordinal): p for p in self.pods}

    @cached_property
    def _by_uid(self) -> dict[str, Pod]:
        return {p.uid: p for p in self.pods}

    @cached_property
    def service(self) -> ServiceReport | None:
        """What the gateway says that serves clients; None: none does."""
        there = (pod for pod in self.of(names.ROLE_GATEWAY) if pod.lost_since is None and not pod.deleting)
        reports = (self.report(pod) for pod in there)
        return next((report.service for report in reports if report and report.state == "running"), None)

    @cached_property
    def lacks_children(self) -> bool:
        """Whether a child could not be written: no pod may start, since it would find somebody else's object, or none, in place of ours."""
        return any(problem.verb == "write" for problem in self.conflicts)

    @cached_property
    def hindrances(self) -> tuple[ChildProblem, ...]:
        """What is refused and keeps pods from starting."""
        return tuple(problem for problem in self.conflicts if problem.verb != "delete")

    def absence(self, role: str) -> str:
        """That a pod of the role does not exist, and why, as far as that is known: the end of a sentence."""
        why = self.uncreated.get(role)
        return f"does not exist: {why}" if why else "does not exist yet"

    def has_lost_account(self, pod: Pod) -> bool:
        """Whether the pod is older than its ServiceAccount: its token is bound to a former one, and the API server refuses it."""
        return 0 < pod.created < self._account_created

    @cached_property
    def _account_created(self) -> float:
        account = self.children.get(("ServiceAccount", names.pods(self.job.name)))
        ours = account is not None and controls(self.job, account)
        return seconds(account["metadata"].get("creationTimestamp") or "") if account and ours else 0.0

    @cached_property
    def lifecycle(self) -> LifecycleSpec:
        """The limits in force: those of the newest valid spec."""
        newest = self.spec or (self.control.spec if self.control else None)
        return newest.lifecycle if newest else LifecycleSpec()

    @cached_property
    def published(self) -> RLJobSpec | None:
        """The spec of the control message. If its scheduler lets rollouts come and go, with the numbers of rollouts and workers that the job wants
        now."""
        if self.control is None:
            return None
        given = self.control.spec
        scalable = given.scheduling.facts.scalable
        return scaled(given, self.spec) if self.spec and scalable else given

    def spec_of(self, attempt: Attempt | None) -> RLJobSpec | None:
        """The spec in force for this attempt. An open attempt keeps the one that it was published with, except for the numbers of rollouts and
        workers; otherwise the job's own applies.

        An attempt that had not been published when the job's spec became invalid is stopped, for which the former spec will do.
        """
        if attempt is None or not is_open(attempt) or self.control is None:
            return self.spec
        return self.published if self.control.attempt == attempt.number or self.spec is None else self.spec

    def is_void(self, attempt: Attempt | None) -> bool:
        """Whether an open attempt can never run, so that it has to be stopped: the spec changed before the attempt was published, or its control
        message was deleted after that. Its members would read a spec that their pods were not made for.
        """
        if attempt is None or not is_open(attempt):
            return False
        effective = self.spec_of(attempt)
        unpublished = self.control is not None and self.control.attempt < attempt.number
        misfit = effective is not None and effective.gang_sizes != Counter(m.role for m in attempt.members)
        changed = unpublished and attempt.generation != self.job.generation
        return misfit or changed or attempt.reason == reasons.SPEC_CHANGED
