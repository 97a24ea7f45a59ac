"""The messages between operator and trainer: two kinds of ConfigMaps in Kubernetes, two kinds of files on a single machine.

Control (`<job>-control`, written by the operator only) says which attempt runs, with which members. Report (`<pod>-report`, one per pod,
written by that pod's launcher) says what came of it. Reports are untrusted input: they are parsed, never believed beyond their own pod.

An *attempt* is one life of the whole gang: one rendezvous, one torchrun per member. A *boot* is one life of a launcher process; only a boot
that the control lists runs the attempt.
"""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from rljob_api import names
from rljob_api.base import Wire
from rljob_api.metrics import duration, durations, kept_metrics, kept_points, known
from rljob_api.server_group import ServerGroup
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import MOST_CHECKPOINTS
from rljob_api.text import one_line, plain

Text = Annotated[str, StringConstraints(max_length=4096), AfterValidator(plain)]
"""Text of any number of lines."""
Line = Annotated[str, StringConstraints(max_length=2048), AfterValidator(one_line)]
"""Text on one line."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Number of a step, an attempt or a rank."""
Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Seconds since the epoch, before the year 10000."""
Command = Literal["run", "drain", "stop"]
Result = Literal["succeeded", "drained", "failed", "stopped"]


class Member(Wire):
    """One pod of an attempt: of the trainer, or of the gang of another model."""

    pod: str
    """Name of the pod."""
    pod_uid: str
    """UID of the pod."""
    boot_id: str
    """Identifier of this life of the pod's launcher process."""
    node_rank: int
    """Node rank of the pod in its gang."""
    address: str
    """Pod IP."""
    node: str = ""
    """Name of the node that the pod is on."""
    role: str = names.ROLE_TRAINER
    """Whose gang it belongs to: `trainer`, `critic`, `reference`, or `reward` with the place in spec.rewards."""


class GangAddress(Wire):
    """Where the pods of a gang find its rank 0, by address."""

    address: str
    """IP of the pod of rank 0."""
    master_port: int
    """Port of the ranks' TCP store (MASTER_PORT)."""


class RolloutEndpoint(Wire):
    """A server that answers. Only the trainer knows whether a rollout has the current policy."""

    pod: str
    pod_uid: str
    url: str


class SandboxAddress(Wire):
    """A sandbox that is free, or was when the operator looked."""

    pod_uid: str
    address: str
    """IP of the pod and port of its helper, as in a URL."""


class Resume(Wire):
    """Where an attempt starts."""

    policy: Literal["auto", "required", "never"]
    step: int | None = None
    """A complete checkpoint to go back to; later ones leave the lineage. None: the newest of the lineage."""
    saved: int | None = None
    """Step of the newest checkpoint that the job reported before this attempt. If none is left, the attempt fails instead of starting over."""


class Control(Wire):
    """The operator's control message."""

    protocol: int = names.PROTOCOL
    name: str
    namespace: str
    job_uid: str
    attempt: int = 0
    """0: none yet."""
    command: Command = "stop"
    """run; drain: finish the step, save and end; stop: end now."""
    members: list[Member] = []
    gangs: dict[str, GangAddress] = {}
    """Addresses of the members' gangs, by role."""
    service_port: int = 0
    """Port at which the trainer's rank 0 answers the gangs of other models, and workers of agents; 0: there are neither."""
    resume: Resume
    failed_attempt: int = 0
    """The newest attempt that failed by what its own processes did (reasons.COUNTED); 0: none. The work that it had may be the cause. An attempt that
    lost its nodes, was preempted or drained says nothing of its work."""
    rollouts: list[RolloutEndpoint] = []
    """Rollout servers that are ready. They, `pools`, `sandboxes`, `gateway`, its number and `servers` change while an attempt runs; everything
    else but `command` is fixed per attempt."""
    pools: dict[str, list[RolloutEndpoint]] = {}
    """Servers of each pool."""
    sandboxes: dict[str, list[SandboxAddress]] = {}
    """Sandboxes of each environment of the spec that are free, by its name."""
    local: bool = False
    """Whether the job runs on one machine, without Kubernetes. Then sandboxes are directories of that machine."""
    gateway: str = ""
    """Address at which the driver of `task: service` asks for work, as a URL; empty: there is none. Only the gateway that finds its own address here
    serves, so that no two of them write to one journal."""
    gateway_number: int = 0
    """Grows whenever another pod is named the gateway: journals that one with a higher number has claimed are not for one with a lower."""
    servers: list[ServerGroup] = []
    """Servers that consist of several pods, of rollouts and pools alike. Of these, `rollouts` and `pools` name the heads."""
    spec: RLJobSpec

    def member(self, boot_id: str) -> Member | None:
        return next((m for m in self.members if m.boot_id == boot_id), None)

    def server_of(self, boot_id: str) -> ServerGroup | None:
        """The server of several pods that a pod's boot is a part of."""
        return next((s for s in self.servers if any(p.boot_id == boot_id for p in s.parts)), None)

    def members_of(self, role: str) -> list[Member]:
        return [m for m in self.members if m.role == role]


class Failure(Wire):
    """Why a process ended an attempt."""

    kind: Literal["application", "configuration", "collective", "killed", "full"]
    """`application`: an exception; `configuration`: a mistake of the user, which no restart fixes; `collective`: another rank was lost, where the
    cause is; `killed`: a signal ended a process; `full`: a volume has no space left."""
    rank: Count | None = None
    """Global rank of the process that failed; unset: it has none."""
    exception: Text = ""
    """Class of the exception, or the signal, such as `Signal 9 (SIGKILL)`."""
    message: Text = ""
    """Message of the exception."""
    lines: Annotated[list[Text], Field(max_length=20)] = []
    """Last lines of the traceback, or of a server's log. Empty for a mistake of the user, which `message` explains."""
    time: Time = 0.0
    """When the process failed, in seconds since the epoch, by the pod's clock; 0: not known."""
    field: Line = ""
    """Path of the wrong field of the spec, with kind `configuration`."""

    @property
    def sentence(self) -> str:
        """Class and message: a message alone, such as that of KeyError or of an assertion, may say nothing."""
        return ": ".join(text for text in (self.exception, self.message) if text)

    @property
    def explanation(self) -> str:
        """The sentence; of a mistake of the user the message, which needs no class."""
        return self.message if self.kind == "configuration" else self.sentence


RESUME_STEP = "resume step"
"""`Failure.field` when the step that `resume --from-step` named has no complete checkpoint."""


class Checkpoint(Wire):
    """One complete checkpoint."""

    step: Count
    """Step after which it was saved."""
    attempt: Count
    """Number of the attempt that saved it."""
    path: Line
    """Directory of the checkpoint."""
    digest: Line = ""
    """Digest of the policy's weights."""
    layout: Line = ""
    """Parallel layout that it was saved in, for example `tp2-pp1-dp1`."""
    time: Time = 0.0
    """When it was saved, in seconds since the epoch."""


class RolloutState(Wire):
    """What the trainer knows of one rollout."""

    pod: Line
    policy_step: Count | None = None
    """Step of the policy that it serves; None: it has none of this attempt's yet."""
    unauthorized: bool = False
    """Whether it refuses the job's token (401), because trainer and rollout hold different ones."""
    quarantine: Line = ""
    """Why it is left out of publications for a while: it answers, but failed several in a row. Empty: it is not left out."""


class Point(Wire):
    """Main metrics of one step."""

    step: Count
    """Number of the step."""
    reward: float | None = None
    """Mean reward of the step; absent for tasks without rewards."""
    loss: float
    """Loss of the step."""
    seconds: float
    """Duration of the step, in seconds."""


PhaseOfRun = Literal[
    "fetching",
    "loading",
    "waiting",
    "evaluating",
    "generating",
    "scoring",
    "training",
    "syncing",
    "saving",
    "serving",
    "finishing",
]
"""What a trainer may be doing. fetching: it copies the files of model.source and data.sources; waiting: fewer than minReplicas rollouts have the
current policy; scoring: it measures a batch, with old and reference log-probabilities and values, before the update; serving: clients of a
service can ask for work."""


class WorkerLoad(Wire):
    """Calls of worker pods whose number follows them (`autoscaling`): trajectories of an agent, or calls of a reward function."""

    calls: Count = 0
    """Number of calls that run or wait for a place."""
    needed: Count = 0
    """The largest number of pods that calls have needed in the last `downSeconds`, as far as these have been counted."""
    enough: Count | None = None
    """Number of pods beyond which none is needed, nor has been for `downSeconds`, and in none of which a call runs; None: nobody has counted for so
    long."""


class Progress(Wire):
    """Progress of the run, from rank 0."""

    phase: PhaseOfRun = "loading"
    """What the trainer is doing."""
    spent: Annotated[dict[PhaseOfRun, float], BeforeValidator(durations(get_args(PhaseOfRun)))] = {}
    """Seconds of this attempt in each phase, without those since the present one began."""
    fetching: Line = ""
    """What is fetched and how much of it is there: `hf://ORG/MODEL@REVISION, 3.2 of 15.2 GB`."""
    loading: Annotated[list[Line], Field(max_length=64)] = []
    """Roles on ranks of their own that have not loaded their models yet, while the trainer has and waits for them."""
    awaiting: Line = ""
    """What the job waits for, when nothing has moved for 10 s: `syncing: waiting for demo-rollout-0 to receive weights`."""
    heartbeat: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Advances with every piece of progress: a sample, a micro-batch, a bucket, a file."""
    step: Count = 0
    """Steps that are done."""
    steps: Count = 0
    """Steps of the whole job, also if the spec has `epochs`; 0: not known yet."""
    started_from: Count | None = None
    """Step of the checkpoint that this attempt started from; 0: from the model; None: not decided yet."""
    policy_step: Count = 0
    digest: Line = ""
    metrics: Annotated[dict[str, float], BeforeValidator(kept_metrics)] = {}
    """Metrics of the last step, by the names of the metric table and of reward functions. Others, and values that are not finite, are left out."""
    history: Annotated[list[Point], Field(max_length=64), BeforeValidator(kept_points)] = []
    """Main metrics of steps that are spread over the run, and of the last one. Points whose values are not finite are left out."""
    pace: Annotated[float | None, BeforeValidator(duration)] = None
    """Median duration of the last ten steps, in seconds; None: no step is done yet."""
    saving: Annotated[float | None, BeforeValidator(duration)] = None
    """Seconds that the last checkpoint took until it was complete; None: none was saved yet."""
    checkpoints: Annotated[list[Checkpoint], Field(max_length=MOST_CHECKPOINTS)] = []
    """Complete checkpoints of the lineage, oldest first."""
    rollouts: Annotated[list[RolloutState], Field(max_length=4096)] = []
    unauthorized: Annotated[list[Line], Field(max_length=4096)] = []
    """Pods of pools whose servers refuse the job's token (401): they hold another one."""
    export: Line = ""
    """Directory of the Hugging Face export, once written."""
    evaluation: Annotated[dict[str, float], BeforeValidator(known(("first", "last")))] = {}
    """`first` and `last` mean reward on the held-out prompts; without rewards, mean loss on the held-out examples."""
    backend: Line = ""
    """Layers and kernels that are in use."""
    warnings: Annotated[list[Line], Field(max_length=16)] = []
    """What a user should know of a run that goes on."""
    workers: Annotated[dict[Line, WorkerLoad], Field(max_length=128)] = {}
    """By role: what the number of its pods follows, where it follows anything."""


class ServiceReport(Wire):
    """What the gateway of a service has."""

    clients: Count = 0
    """Sessions of clients that live."""
    models: Count = 0
    """Models that clients train."""
    waiting: Count = 0
    """Requests that wait for ranks or servers."""
    idle: bool = False
    """Whether nobody has asked the ranks of `attempt` for anything for `service.idleSeconds`, and nothing waits."""
    attempt: Count = 0
    """The attempt whose driver began to ask for work last; 0: none."""
    answered: Count = 0
    """Requests that its ranks were the first to answer."""
    trained_tokens: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Tokens of training that this life of the gateway has answered."""
    sampled_tokens: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Tokens that were sampled meanwhile."""
    mismatches: Count = 0
    """Requests that had another result when they were repeated after a failure, meanwhile."""


class Report(Wire):
    """A launcher's report."""

    protocol: int = names.PROTOCOL
    pod: Line
    pod_uid: Line
    boot_id: Line
    attempt: Count = 0
    """The newest attempt this boot was a member of; 0: none."""
    state: Literal["idle", "running", "stopped"] = "idle"
    result: Result | None = None
    """How that attempt ended, when stopped."""
    failure: Failure | None = None
    failed_generation: Count = 0
    """With a server of several pods: the newest generation in which this pod's part has failed; 0: none."""
    progress: Progress | None = None
    """Progress of the run; only in the report of rank 0's pod."""
    service: ServiceReport | None = None
    """What a gateway has; only in its report."""


class Request(Wire):
    """`kubectl rljob suspend|resume|restart` writes it; the operator copies its nonce into status and never acts on it again."""

    job_uid: Line
    """UID of the job that it is meant for: one that was created again under the same name ignores it."""
    nonce: Annotated[Line, Field(max_length=253)]
    action: Literal["suspend", "resume", "restart"]
    """restart: drain the attempt that runs and open the next one."""
    from_step: Count | None = None
    """With resume: continue from this complete checkpoint, also when the job has finished or failed; 0: start over from the initial weights."""
