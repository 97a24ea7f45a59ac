"""The status of an RLJob: decisions, which are authoritative, observations, and conditions for people and tools."""

from typing import Literal

from pydantic import Field

from rljob_api import names
from rljob_api.accounting import Accounting
from rljob_api.base import Model, Wire
from rljob_api.protocol import Command, Failure, Member
from rljob_api.status_parts import (
    CheckpointStatus,
    NodeStatus,
    PlacementStatus,
    Preemption,
    ProgressStatus,
    RolloutFailure,
    ServerStatus,
    ServiceStatus,
)

State = Literal["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal[
    "Admitted",
    "Placed",
    "NodesSound",
    "TrainerReady",
    "RolloutsReady",
    "Reconciling",
    "Checkpointed",
    "Preempted",
    "Suspended",
    "Stalled",
    "Succeeded",
    "Failed",
]


class Condition(Wire):
    """A Kubernetes condition."""

    type: ConditionType
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds; Unknown: not known yet."""
    reason: str
    """Why it does or does not hold, in one word for programs."""
    message: str = ""
    """Why it does or does not hold, in one sentence for people."""
    last_transition_time: str
    """When `status` last changed."""
    observed_generation: int
    """Generation of the spec that the condition was computed from."""


class Attempt(Wire):
    """The current or last attempt: one life of the whole gang. It is written before anything acts on it."""

    number: int
    """Number of the attempt, from 1, over the whole life of the job."""
    command: Command = "run"
    """Command in the control message: run, drain or stop."""
    reason: str = ""
    """Why `command` is drain or stop, in one word."""
    members: list[Member] = []
    """The pods that run the attempt: the trainer's, and those of gangs of other models."""
    resume_step: int | None = None
    """Step of the checkpoint that a request resumes from; unset: the newest."""
    saved_step: int | None = None
    """Step of the newest checkpoint that the job had when the attempt was opened; unset: it had none."""
    generation: int = 0
    """Generation of the spec that the attempt runs."""
    started_at: str = ""
    """When the attempt was opened."""
    commanded_at: str = ""
    """When `command` became drain or stop; empty: it is run."""
    ended_at: str = ""
    """When the last member had stopped; empty: some may still run."""
    failure: Failure | None = None
    """Root cause of the attempt's failure, if it failed."""
    failed_pod: str = ""
    """Name of the pod whose failure ended the attempt."""

    def of(self, role: str) -> list[Member]:
        """Members of one gang."""
        return [m for m in self.members if m.role == role]

    @property
    def first(self) -> Member | None:
        """The trainer's pod of node rank 0, which reports the job's progress."""
        return next((m for m in self.of(names.ROLE_TRAINER) if m.node_rank == 0), None)


class Restarts(Wire):
    """Restarts of the gang."""

    total: int = 0
    """How often another attempt followed one that did not finish, for whatever reason."""
    counted: int = 0
    """Failures in a row that count against `lifecycle.maxRestarts`. An attempt that has done three steps and saved a checkpoint resets them,
    and so does one of a service that has answered three requests."""
    uncounted: int = 0
    """Other restarts in a row, which nobody requested: after deleted, disrupted and lost pods. They do not end the job; from the second one on, each
    waits longer. What resets `counted` resets them."""
    not_before: str = ""
    """When the next attempt may start at the earliest: the end of the delay before a restart."""


class SuspendOverride(Wire):
    """A request to suspend or resume. It applies until spec.suspend changes or a newer request comes."""

    suspend: bool
    """What was requested: true to suspend, false to resume."""
    spec_suspend: bool
    """Value of spec.suspend when the request was consumed."""


class RoleStatus(Wire):
    ready: int = 0
    """Pods that are ready; of servers of several pods, servers that are."""
    desired: int = 0
    """Pods, or servers, that there should be now; 0 while the job is suspended and when it has ended."""
    text: str = ""
    """`ready/desired`; `-` if there should be none: pods that are still ready are being removed."""
    selector: str = ""
    """Label selector of the role's pods; where servers have several pods, of their heads."""
    unready: list[str] = []
    """The first four servers of several pods that are not ready, each with the pod that keeps it, and why."""


class SpareStatus(Wire):
    """Spare pods of the trainer (`scheduling.spareNodes`)."""

    desired: int = 0
    """Number of spares that there should be now."""
    warm: int = 0
    """Number of them that run, and can stand in at once."""
    standing_in: list[str] = []
    """Members of the open attempt beyond the first `trainer.nodes` ordinals. Such a pod was a spare, or replaced one, before it became a member."""


class LastFailure(Wire):
    attempt: int
    """Number of the attempt that failed."""
    reason: str
    """Kind of the failure, in one word."""
    pod: str = ""
    """Name of the pod in which it began."""
    failure: Failure | None = None
    """Failure that the pod reported, or that the operator observed."""
    time: str = ""
    """When the operator recorded the failure."""


class StuckPod(Wire):
    """A pod that was deleted and does not end, although its node answers."""

    pod: str
    """Name of the pod."""
    uid: str
    """UID of the pod."""
    node: str = ""
    """Node that it is on; empty: none."""
    since: str = ""
    """When its grace period ended."""
    why: str = ""
    """What keeps it, and what to do, as a sentence about the pod."""


class JobStatus(Wire):
    """What the operator has decided about the job, and what it observes."""

    observed_generation: int = 0
    """Generation of the spec that this status was computed from; -1: the operator has not seen the job yet."""
    state: State = "Pending"
    """Summary of the status, for display: the operator computes it from the other fields and never reads it."""
    message: str = ""
    """What is happening, or what to do, in one sentence."""
    attempt: Attempt | None = None
    """The current or last attempt: one life of the whole gang."""
    restarts: Restarts = Restarts()
    """How often the gang was restarted."""
    outcome: Literal["", "Succeeded", "Failed"] = ""
    """How the job ended; empty: it has not. Only a resume request with a step opens the job again."""
    outcome_reason: str = ""
    """Why the job ended, in one word."""
    outcome_message: str = ""
    """Why the job ended, in one sentence; empty: `lastFailure` says it, or the job succeeded."""
    finished_at: str = ""
    """When the job ended."""
    cleaned_up: bool = False
    """Whether the children are deleted, because `lifecycle.ttlSecondsAfterFinished` has passed."""
    pending_since: str = ""
    """When the job began to wait for the pods of its first attempt, or of the first after a resume; empty: it does not wait."""
    stranded_since: str = ""
    """Since when pods hold nodes although others have none, so that no attempt can run, held against `lifecycle.strandedSeconds`; empty: that is not
    so."""
    released_until: str = ""
    """Until when a job that was stranded has no pods. Only with a scheduler that would start some of them again at once; empty: it has its pods."""
    preemption: Preemption | None = None
    """The job of higher priority for which this one has left its nodes, until it runs again; unset: none."""
    active_seconds: float = 0.0
    """Total run time of attempts that have ended, in seconds, held against `lifecycle.activeDeadlineSeconds`."""
    suspended: bool = False
    """Whether the pods are deleted because of spec.suspend or a request, or since nobody asks a service for anything."""
    asleep: bool = False
    """Whether a service should be suspended because nobody has asked it for anything for `service.idleSeconds`. The next request wakes it."""
    override: SuspendOverride | None = None
    """A request to suspend or resume that overrides `spec.suspend`."""
    token: int = 1
    """Number of the Secret that holds the rollout servers' token. If the Secret is deleted or changed, all pods get one with the next number."""
    request: str = ""
    """Nonce of the last request of `kubectl rljob` that was consumed."""
    resume_step: int | None = None
    """Step of a checkpoint that a request resumes from, until an attempt has started from it."""
    last_failure: LastFailure | None = None
    """The last failed attempt, with its root cause."""
    last_rollout_failure: RolloutFailure | None = None
    """The last failure of a rollout server, or of a pool's, that the operator has seen."""
    server_failures: dict[str, str] = {}
    """By pod of a rollout or of a pool, a digest of the failure of its server that was recorded last. So each failure is recorded once, whatever the
    clocks of the pods say."""
    stuck_pods: list[StuckPod] = []
    """Pods that were deleted and do not end. The first eight, by name."""
    accounting: Accounting = Accounting()
    """GPU-seconds that the job has held, by what it did meanwhile."""
    lost_steps: int = 0
    """Steps that were not saved and had to be repeated by a later attempt."""
    first_step_at: str = ""
    """When the first step was done."""
    trainer: RoleStatus = RoleStatus()
    """Counts of the trainer pods."""
    spares: SpareStatus = SpareStatus()
    """Spare pods of the trainer, which `trainer` does not count."""
    gangs: dict[str, RoleStatus] = {}
    """Counts of the pods of gangs of other models, by role: `critic`, `reference`, or `reward` with the place in spec.rewards."""
    rollout: RoleStatus = RoleStatus()
    """Counts of the rollout pods; empty for tasks without rollouts."""
    workers: RoleStatus = RoleStatus()
    """Counts of the pods that run agents (`rollout.agent.workers`); empty without them."""
    worker_replicas: dict[str, int] = {}
    """By role, how many pods there should be where `autoscaling` decides. It is forgotten when the job is suspended."""
    scorers: dict[str, RoleStatus] = {}
    """Counts of the pods that run reward functions (`rewards[].workers`), by role: `scorer` with the place in spec.rewards."""
    environments: dict[str, RoleStatus] = {}
    """Counts of the sandboxes of each environment, by its name. `ready`: those that are free."""
    gateway: RoleStatus = RoleStatus()
    """Whether the gateway of a service answers; empty for other tasks."""
    gateway_pod: str = ""
    """UID of the pod that was named the gateway last; empty: none was."""
    gateway_number: int = 0
    """How often another pod was named the gateway. It grows only, so that a former gateway cannot take the journals back."""
    service: ServiceStatus = ServiceStatus()
    """What clients of a service have, and what they wait for."""
    pools: dict[str, RoleStatus] = {}
    """Counts of the pods of each pool, by the pool's name."""
    servers: list[ServerStatus] = []
    """Servers of several pods, of rollouts and pools (`nodes` above 1)."""
    progress: ProgressStatus = ProgressStatus()
    """Progress of the training, as rank 0 reports it."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    """Complete checkpoints of the job."""
    placement: PlacementStatus | None = None
    """Nodes of the pods, with `scheduling.backend: builtin`; unset while the job needs no pods."""
    nodes: list[NodeStatus] = []
    """Nodes that failures of this job point at, or that their owner wants to be left, with what the job does about each."""
    conditions: list[Condition] = []
    """Conditions, for people and for `kubectl wait`."""

    @property
    def asked_besides_rollouts(self) -> dict[str, RoleStatus]:
        """Counts of further pods that generation and scoring wait for, by what users call them."""
        workers = {"workers": self.workers} if self.workers.desired else {}
        return workers | self.scorers | {f"pool {name}": counted for name, counted in self.pools.items()}

    @property
    def is_leaving(self) -> bool:
        """Whether the job gives up its nodes to a job of higher priority, and still holds some."""
        return self.preemption is not None and not self.preemption.released

    def wants_suspend(self, in_spec: bool) -> bool:
        """Whether the job should be suspended: a service because it is asleep, others by a request, which overrides spec.suspend until that
        changes."""
        asked = self.override
        return self.asleep or (asked.suspend if asked and asked.spec_suspend == in_spec else in_spec)


class RLJobMeta(Model):
    """The part of an RLJob's metadata that the operator reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
