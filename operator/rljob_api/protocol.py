"""What operator and trainer say to each other, in Kubernetes as two kinds of ConfigMap, on one machine as two kinds of file.

Control (`<job>-control`, written by the operator only) says which attempt runs, with which members. Report (`<pod>-report`, one per pod,
written by that pod's launcher) says what came of it. Reports are untrusted input: they are parsed, never believed beyond their own pod.

An *attempt* is one life of the whole gang: one rendezvous, one torchrun per member. A *boot* is one life of a launcher process; only a boot
that the control lists runs the attempt.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api import names
from rljob_api.base import Wire
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import MOST_CHECKPOINTS

Text = Annotated[str, StringConstraints(max_length=4096)]
Command = Literal["run", "drain", "stop"]
Result = Literal["succeeded", "drained", "failed", "stopped"]


class Member(Wire):
    """One trainer pod of an attempt."""

    pod: str
    pod_uid: str
    boot_id: str
    node_rank: int
    address: str
    """Pod IP."""


class RolloutEndpoint(Wire):
    """A rollout server that answers; whether it has the current policy is the trainer's to know."""

    pod: str
    pod_uid: str
    url: str


class Resume(Wire):
    """Where an attempt starts."""

    policy: Literal["auto", "required", "never"]
    step: int | None = None
    """A complete checkpoint to go back to; later ones leave the lineage. None: the newest of the lineage."""


class Control(Wire):
    """The operator's word."""

    protocol: int = names.PROTOCOL
    name: str
    namespace: str
    job_uid: str
    attempt: int = 0
    """0: none yet."""
    command: Command = "stop"
    """run; drain: finish the step, save, end; stop: end now."""
    members: list[Member] = []
    master_address: str = ""
    master_port: int = 0
    resume: Resume
    rollouts: list[RolloutEndpoint] = []
    """Changes while an attempt runs; everything else but `command` is fixed per attempt."""
    spec: RLJobSpec

    def member(self, boot_id: str) -> Member | None:
        return next((m for m in self.members if m.boot_id == boot_id), None)


class Failure(Wire):
    """Why a process ended an attempt."""

    kind: Literal["application", "configuration", "collective", "killed"]
    """configuration: the user's to mend, a restart cannot help; collective: a peer was lost, somebody else is the cause; killed: a signal."""
    rank: int | None = None
    exception: Text = ""
    """Class name, or `Signal 9 (SIGKILL)`."""
    message: Text = ""
    lines: Annotated[list[Text], Field(max_length=20)] = []
    """Last lines of the traceback."""
    time: float = 0.0
    """Seconds since the epoch, by the pod's clock."""
    field: str = ""
    """Path of the spec's field, for kind configuration."""


class Checkpoint(Wire):
    """One complete checkpoint."""

    step: int
    attempt: int
    path: str
    digest: str = ""
    """Digest of the policy's weights."""
    layout: str = ""
    """For example `tp2-pp1-dp1`."""
    reshardable: bool = True
    """Can be loaded into another layout with its optimizer."""
    time: float = 0.0


class RolloutState(Wire):
    """What the trainer knows of one rollout."""

    pod: str
    policy_step: int | None = None
    """Step of the policy it serves; None: not brought up yet."""


class Point(Wire):
    """Main metrics of one step."""

    step: int
    reward: float
    loss: float
    seconds: float


class Progress(Wire):
    """Rank 0's account of the run."""

    phase: Literal["loading", "waiting", "evaluating", "generating", "training", "syncing", "saving", "finishing"] = (
        "loading"
    )
    """waiting: fewer than minReplicas rollouts have the current policy."""
    heartbeat: int = 0
    """Advances with every piece of progress: a sample, a micro-batch, a bucket, a file."""
    step: int = 0
    """Steps done."""
    started_from: int | None = None
    """Step of the checkpoint this attempt started from; 0: from the model; None: not decided yet."""
    policy_step: int = 0
    digest: str = ""
    metrics: dict[str, float] = {}
    """The last step's, by the names of the metric table."""
    history: Annotated[list[Point], Field(max_length=64)] = []
    checkpoints: Annotated[list[Checkpoint], Field(max_length=MOST_CHECKPOINTS)] = []
    """Complete ones of the lineage, oldest first."""
    rollouts: Annotated[list[RolloutState], Field(max_length=4096)] = []
    export: str = ""
    """Directory of the Hugging Face export, once written."""
    evaluation: dict[str, float] = {}
    """`first` and `last` mean reward on the held-out prompts."""
    backend: str = ""
    """Which layers and kernels are in use."""


class Report(Wire):
    """A launcher's word."""

    protocol: int = names.PROTOCOL
    pod: str
    pod_uid: str
    boot_id: str
    attempt: int = 0
    """The newest attempt this boot was a member of; 0: none."""
    state: Literal["idle", "running", "stopped"] = "idle"
    result: Result | None = None
    """How that attempt ended, when stopped."""
    failure: Failure | None = None
    progress: Progress | None = None
    """From the pod of rank 0."""
