"""The status of an RLJob: what was decided (authoritative), what was observed, and conditions for people and tools."""

from typing import Literal

from pydantic import Field

from rljob_api import names
from rljob_api.base import Model, Wire
from rljob_api.protocol import Checkpoint, Command, Failure, Member, Point

State = Literal["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal[
    "Admitted",
    "Placed",
    "TrainerReady",
    "RolloutsReady",
    "Reconciling",
    "Checkpointed",
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
    """Whether it holds; Unknown: not known yet."""
    reason: str
    """Why, in one word for programs."""
    message: str = ""
    """Why, in one sentence for people."""
    last_transition_time: str
    """When `status` last changed."""
    observed_generation: int
    """Generation of the spec that it was computed from."""


class Attempt(Wire):
    """The current or last life of the gang. Written before anything acts on it."""

    number: int
    """Counts from 1, over the whole life of the job."""
    command: Command = "run"
    """Command in the control message: run, drain or stop."""
    reason: str = ""
    """Why `command` is drain or stop."""
    members: list[Member] = []
    """The pods that run it: the trainer's, and those of gangs of other models."""
    resume_step: int | None = None
    """The checkpoint that was asked for; None: the newest."""
    generation: int = 0
    """Generation of the spec that it runs."""
    started_at: str = ""
    """When it was opened."""
    commanded_at: str = ""
    """When `command` became drain or stop."""
    ended_at: str = ""
    """When its last member had stopped; empty: it may still be alive."""
    failure: Failure | None = None
    """Root cause of its failure, if it failed."""
    failed_pod: str = ""
    """The pod whose failure ended it."""

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
    """Application failures in a row, held against maxRestarts; a stable run resets them."""
    not_before: str = ""
    """End of the back-off."""


class Override(Wire):
    """A request to suspend or resume. It applies until spec.suspend changes or a newer request comes."""

    suspend: bool
    """What was requested: true to suspend, false to resume."""
    spec_suspend: bool
    """spec.suspend when the request was consumed."""


class RoleStatus(Wire):
    ready: int = 0
    """Pods that are ready."""
    desired: int = 0
    """Pods that there should be now; 0 while the job is suspended and when it has ended."""
    text: str = ""
    """`ready/desired`, for a column of `kubectl get`; `-` while there should be none and none is ready."""
    selector: str = ""
    """Label selector of its pods, for the scale subresource."""


class ProgressStatus(Wire):
    """Progress as rank 0 reports it, refreshed at most every 30 s while nothing else changes."""

    attempt: int = 0
    """Whose steps these are: the last that has chosen its checkpoint."""
    step: int = 0
    """Steps that are done."""
    steps: int = 0
    """Steps of the whole job; 0: not known yet."""
    text: str = ""
    """`120/500`, for a column of `kubectl get`."""
    phase: str = ""
    """What the trainer is doing: loading, waiting, generating, training, syncing, saving, evaluating or finishing."""
    policy_step: int = 0
    """Step of the policy that the rollout servers got last."""
    metric: str = ""
    """Main metric of the last step, for a column of `kubectl get`: `reward 0.612` (the mean), or `loss 1.234` for tasks without rewards."""
    metrics: dict[str, float] = {}
    """Metrics of the last step, by name."""
    history: list[Point] = []
    """Main metrics of earlier steps, thinned out over the run."""
    evaluation: dict[str, float] = {}
    """`first` and `last` mean reward on the held-out prompts; without rewards, mean loss on the held-out examples."""
    export: str = ""
    """Directory of the exported Hugging Face model, once it is written."""
    started_from: int | None = None
    """Step of the checkpoint that the attempt started from; 0: the model itself."""
    backend: str = ""
    """Layers and kernels that the trainer uses."""
    updated_at: str = ""
    """When the trainer last reported progress."""


class CheckpointStatus(Wire):
    latest: Checkpoint | None = None
    """The newest complete checkpoint."""
    kept: list[Checkpoint] = []
    """All complete checkpoints that the job can go back to, oldest first."""


class LastFailure(Wire):
    attempt: int
    """Number of the attempt that failed."""
    reason: str
    """Kind of the failure, in one word."""
    pod: str = ""
    """The pod where it began."""
    failure: Failure | None = None
    """What that pod reported."""
    time: str = ""
    """When the operator recorded it."""


class PodAssignment(Wire):
    """A pod's node, chosen by the `builtin` backend."""

    pod: str
    """Name of the pod."""
    node: str
    """Node that the pod is pinned to."""
    rank: int | None = None
    """Node rank of a gang's pod in the next attempt."""


class Exclusion(Wire):
    """A node that did not take its pod and is not used for a while."""

    node: str
    """Name of the node."""
    until: str
    """When the node may be used again."""
    cause: str = ""
    """Why the node did not take the pod: in the scheduler's words, or that the scheduler does not say why."""


class Crossing(Wire):
    """What crosses a level, and none wider."""

    level: str
    """Label key, or `node`."""
    pairs: int
    """Pairs of pods that exchange bytes across this level."""
    bytes_per_step: int
    """Estimated for a model of 8 billion parameters, since the operator cannot read config.json; `kubectl rljob plan --model` can."""


class PlacementReport(Wire):
    """Topology of a placement."""

    stages: list[str] = []
    """The narrowest domain that holds each pipeline stage; empty: only the whole cluster does."""
    rollouts: list[str] = []
    """Domain of each rollout pod; empty: not placed."""
    pools: dict[str, list[str]] = {}
    """Domain of each server of a pool, by the pool's name."""
    gangs: dict[str, list[str]] = {}
    """The narrowest domain of each pipeline stage of another model's gang, by its role."""
    levels: list[Crossing] = []
    """What crosses each level of the topology, widest level first."""


class RolloutFailure(Wire):
    """The last time that a rollout server failed. It was started again in its pod; no attempt ends by that."""

    pod: str
    """The rollout pod whose server failed."""
    failure: Failure
    """What that pod reported."""


class PlacementStatus(Wire):
    """Which pod goes to which node. Written before a pod's gate is removed."""

    assignments: list[PodAssignment] = []
    """Node of each pod."""
    requests: dict[str, dict[str, int]] = {}
    """What a pod requests, by role, in thousandths: room for assigned pods that are not on their nodes yet is reserved."""
    excluded: list[Exclusion] = []
    """Nodes that are avoided for ten minutes, since a pod could not be bound to them."""
    problem: str = ""
    """Why pods have no assignment."""
    unschedulable: str = ""
    """Why no node takes pods that were released to one, such as a claim that does not exist."""
    report: PlacementReport = PlacementReport()


class JobStatus(Wire):
    """The whole status."""

    observed_generation: int = 0
    """Generation of the spec that this status was computed from; -1: the operator has not seen the job yet."""
    state: State = "Pending"
    """For display; computed from the rest and never read by the operator."""
    message: str = ""
    """One sentence: what is happening, or what to do."""
    attempt: Attempt | None = None
    """The current or last attempt: one life of the whole gang."""
    restarts: Restarts = Restarts()
    """How often the gang was restarted."""
    outcome: Literal["", "Succeeded", "Failed"] = ""
    """How the job ended; empty: it has not. Only a resume request with a step opens the job again."""
    outcome_reason: str = ""
    """Why the job ended, in one word."""
    outcome_message: str = ""
    """Why, if no failure of an attempt says it."""
    finished_at: str = ""
    """When the outcome was reached."""
    cleaned_up: bool = False
    """ttlSecondsAfterFinished has passed: the children are deleted."""
    pending_since: str = ""
    """When the first attempt, or the first after a resume, began to wait for its pods."""
    active_seconds: float = 0.0
    """Total run time of attempts that have ended."""
    suspended: bool = False
    """The pods are released because of spec.suspend or a request."""
    override: Override | None = None
    """A request to suspend or resume that overrides `spec.suspend`."""
    token: int = 1
    """Number of the Secret with the token of the rollout servers: the next one after it was deleted or changed."""
    request: str = ""
    """Nonce of the last request that was consumed."""
    resume_step: int | None = None
    """A checkpoint that was asked for and that no attempt has started from yet."""
    last_failure: LastFailure | None = None
    """The last failed attempt, with its root cause."""
    last_rollout_failure: RolloutFailure | None = None
    """The last failed rollout server."""
    lost_steps: int = 0
    """Steps that were not saved and had to be repeated by a later attempt."""
    first_step_at: str = ""
    """When the first step was done."""
    trainer: RoleStatus = RoleStatus()
    """Trainer pods."""
    gangs: dict[str, RoleStatus] = {}
    """Pods of gangs of other models, by role: `critic`, `reference`, or `reward` with the place in spec.rewards."""
    rollout: RoleStatus = RoleStatus()
    """Rollout pods; empty for tasks without rollouts."""
    pools: dict[str, RoleStatus] = {}
    """Pods of each pool, by the pool's name."""
    progress: ProgressStatus = ProgressStatus()
    """Progress of the training, as rank 0 reports it."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    """Complete checkpoints of the job."""
    placement: PlacementStatus | None = None
    """Nodes of the pods, with `scheduling.backend: builtin`, while the job wants pods."""
    conditions: list[Condition] = []
    """Conditions, for people and for `kubectl wait`."""

    def wants_suspend(self, in_spec: bool) -> bool:
        """Whether the job should be suspended: a request overrides spec.suspend until that changes."""
        asked = self.override
        return asked.suspend if asked and asked.spec_suspend == in_spec else in_spec


class RLJobMeta(Model):
    """What we read of an object's metadata."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
