"""The status of an RLJob: what was decided (authoritative), what was observed, and conditions for people and tools."""

from typing import Literal

from pydantic import Field

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
]


class Condition(Wire):
    """A Kubernetes condition."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str
    observed_generation: int


class Attempt(Wire):
    """The current or last life of the gang. Written before anything acts on it."""

    number: int
    command: Command = "run"
    """Command in the control message: run, drain or stop."""
    reason: str = ""
    """Why `command` is drain or stop."""
    members: list[Member] = []
    resume_step: int | None = None
    """The checkpoint that was asked for; None: the newest."""
    generation: int = 0
    """Of the spec it runs."""
    started_at: str = ""
    commanded_at: str = ""
    """When `command` became drain or stop."""
    ended_at: str = ""
    """When its last member had stopped; empty: it may still be alive."""
    failure: Failure | None = None
    """Its root cause, if it failed."""
    failed_pod: str = ""


class Restarts(Wire):
    """Restarts of the gang."""

    total: int = 0
    counted: int = 0
    """Application failures in a row, held against maxRestarts; a stable run resets them."""
    not_before: str = ""
    """End of the back-off."""


class Override(Wire):
    """A request to suspend or resume. It applies until spec.suspend changes or a newer request comes."""

    suspend: bool
    spec_suspend: bool
    """spec.suspend when the request was consumed."""


class RoleStatus(Wire):
    ready: int = 0
    desired: int = 0
    text: str = ""
    """`ready/desired`, for the printer column."""
    selector: str = ""
    """Of its pods, for the scale subresource."""


class ProgressStatus(Wire):
    """Progress as rank 0 reports it, refreshed at most every 30 s while nothing else changes."""

    attempt: int = 0
    """Whose steps these are: the last that has chosen its checkpoint."""
    step: int = 0
    steps: int = 0
    text: str = ""
    """`120/500`, for the printer column."""
    phase: str = ""
    policy_step: int = 0
    metric: str = ""
    """Of the last step, for the printer column: `reward 0.612` (the mean), or `loss 1.234` for tasks without rewards."""
    metrics: dict[str, float] = {}
    history: list[Point] = []
    evaluation: dict[str, float] = {}
    export: str = ""
    started_from: int | None = None
    backend: str = ""
    updated_at: str = ""


class CheckpointStatus(Wire):
    latest: Checkpoint | None = None
    kept: list[Checkpoint] = []


class LastFailure(Wire):
    attempt: int
    reason: str
    pod: str = ""
    failure: Failure | None = None
    time: str = ""


class PodAssignment(Wire):
    """A pod's node, chosen by the `builtin` backend."""

    pod: str
    node: str
    rank: int | None = None
    """Node rank of a trainer in the next attempt."""


class Exclusion(Wire):
    """A node that did not take its pod and is not used for a while."""

    node: str
    until: str


class Crossing(Wire):
    """What crosses a level, and none wider."""

    level: str
    """Label key, or `node`."""
    pairs: int
    """Of pods that exchange bytes."""
    bytes_per_step: int
    """Estimated for a model of 8 billion parameters, since the operator cannot read config.json; `kubectl rljob plan --model` can."""


class PlacementReport(Wire):
    """Topology of a placement."""

    stages: list[str] = []
    """The narrowest domain that holds each pipeline stage; empty: only the whole cluster does."""
    rollouts: list[str] = []
    """Domain of each rollout; empty: not placed."""
    levels: list[Crossing] = []
    """Widest first."""


class RolloutFailure(Wire):
    """The last time that a rollout server failed. It was started again in its pod; no attempt ends by that."""

    pod: str
    failure: Failure


class PlacementStatus(Wire):
    """Which pod goes to which node. Written before a pod's gate is removed."""

    assignments: list[PodAssignment] = []
    requests: dict[str, dict[str, int]] = {}
    """What a pod requests, by role, in thousandths: room for assigned pods that are not on their nodes yet is reserved."""
    excluded: list[Exclusion] = []
    problem: str = ""
    """Why pods have no assignment."""
    report: PlacementReport = PlacementReport()


class JobStatus(Wire):
    """The whole status."""

    observed_generation: int = 0
    state: State = "Pending"
    """For display; computed from the rest and never read by the operator."""
    message: str = ""
    """One sentence: what is happening, or what to do."""
    attempt: Attempt | None = None
    restarts: Restarts = Restarts()
    outcome: Literal["", "Succeeded", "Failed"] = ""
    """Terminal. Only a resume request with a step opens the job again."""
    outcome_reason: str = ""
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
    token: int = 1
    """Number of the Secret with the token of the rollout servers: the next one after it was deleted or changed."""
    request: str = ""
    """Nonce of the last request that was consumed."""
    resume_step: int | None = None
    """A checkpoint that was asked for and that no attempt has started from yet."""
    last_failure: LastFailure | None = None
    last_rollout_failure: RolloutFailure | None = None
    lost_steps: int = 0
    """Steps that were not saved and had to be repeated by a later attempt."""
    first_step_at: str = ""
    """When the first step was done."""
    trainer: RoleStatus = RoleStatus()
    rollout: RoleStatus = RoleStatus()
    """Empty for tasks without rollouts."""
    progress: ProgressStatus = ProgressStatus()
    checkpoint: CheckpointStatus = CheckpointStatus()
    placement: PlacementStatus | None = None
    """Of `scheduling.backend: builtin`, while pods are wanted."""
    conditions: list[Condition] = []

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
