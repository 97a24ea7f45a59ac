"""spec.checkpoint, spec.scheduling and spec.lifecycle: where the run's state lives, where its pods go, and what follows failures and time limits."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.backends import BACKENDS, Backend, BackendName
from rljob_api.base import Model
from rljob_api.spec.common import (
    MOST_SPARES,
    AbsolutePath,
    DnsName,
    NonNegativeInt,
    PositiveInt,
    UploadUrl,
)

LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
    ),
]

PreemptionPolicy = Literal["PreemptLowerPriority", "Never"]
MOST_CHECKPOINTS = 64
"""Checkpoints that are kept, and that a report holds, at most: with more of them, no launcher could read its own progress."""


class CheckpointSpec(Model):
    """Where the run's state lives, and how often it is written."""

    path: AbsolutePath
    """Directory on a volume that all trainer pods share. One job at a time writes to it."""
    every_steps: NonNegativeInt = 50
    """Steps between checkpoints; 0: only when draining and at the end."""
    keep_last: Annotated[int, Field(ge=1, le=MOST_CHECKPOINTS)] = 3
    """How many complete checkpoints are kept. Older ones are deleted after a newer one is complete."""
    resume: Literal["auto", "required", "never"] = "auto"
    """Where an attempt starts. `auto`: from the newest complete checkpoint in `path`, else from the model; `required`: fail without one;
    `never`: refuse a directory that holds one at the job's first start."""
    resume_from: AbsolutePath | None = None
    """A `global_step_N` directory, of this job or another of the same model, at which the job's first attempt starts, with optimizer and data order.
    From then on checkpoints in `path` count."""
    asynchronous: bool = True
    """Write periodic checkpoints in the background: training waits for one copy to host memory only. false: it waits until they are on disk, as for
    those of a drain and of the end. All can be resumed in any `trainer.parallelism`."""
    upload: UploadUrl | None = None
    """Directory of an object store, as `s3://BUCKET/RUN` or `gs://BUCKET/RUN`, that every complete checkpoint and every export is copied to, while
    training continues; nothing in it is deleted. Credentials are environment variables, as for `model.source`. Unset: nothing is copied."""
    export_every_steps: NonNegativeInt = 0
    """Steps between exports of the policy as Hugging Face directories `exports/step_N` below `path`, while training waits; 0: only that of
    `exportHuggingFace`, at the end."""
    keep_exports: PositiveInt = 3
    """How many exports of `exportEverySteps` are kept in `exports/`. Older ones are deleted after a newer one is complete."""
    export_hugging_face: bool = True
    """Write the final policy as a Hugging Face directory next to the last checkpoint; with `model.lora` its merged weights, and the adapters as a
    directory of the peft library."""


class SchedulingSpec(Model):
    """Placement of the pods on nodes."""

    backend: BackendName = "builtin"
    """Who chooses nodes. `builtin`: rljob places the whole gang at once, near each other by `topologyLevels`; `none`: the
    cluster's own scheduler, pod by pod; `native`: the same, with a PodGroup of Kubernetes 1.37 for each role; `kueue`, `volcano` and `kai`: those
    schedulers, where they are installed, with the whole gang as one group."""
    topology_levels: Annotated[list[LabelKey], Field(max_length=8)] = []
    """Labels of nodes, from the widest domain to the narrowest, for example block, rack and NVLink domain; the node itself is always the last. For
    `builtin` and `kueue`."""
    required_level: LabelKey | None = None
    """The level of `topologyLevels` of which one domain has to hold the job: with `builtin` all of its pods, with `kueue` those of each role. Unset:
    pods are as near to each other as there is capacity."""
    queue: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Queue of `backend: kueue` (a LocalQueue), `volcano` or `kai`; all of them need one. For `kueue` and `kai` its name is the value of a label: at
    most 63 letters, digits, `-`, `_` and `.`."""
    scheduler_name: DnsName | None = None
    """Scheduler that binds all pods of the job to nodes, as `schedulerName` of a pod, for example one with a profile of its own. Unset: the
    backend's own, or the administrator's default (`jobs.defaults.scheduling.schedulerName` of the chart), or the cluster's. The administrator says
    which may be named (`jobs.limits.schedulerNames`)."""
    priority: Annotated[int, Field(ge=-(10**9), le=10**9)] = 0
    """Priority among jobs of the `builtin` backend: higher ones are placed first, then older ones. For those that do not fit, running jobs of lower
    priority save and wait (`preemptionPolicy`)."""
    preemption_policy: PreemptionPolicy = "PreemptLowerPriority"
    """With `builtin`, as in a PriorityClass: whether running jobs of lower `priority` finish their step, save, and leave their nodes if that makes
    room for the whole gang. `Never`: the job waits until there is room. A PriorityClass of its pods with `Never` has the same effect."""
    exclude_after_failures: Annotated[int, Field(ge=0, le=10)] = 2
    """Failures within an hour that point at one node (a pod that its kubelet refused, an error of its GPUs, a killed process, the loss of the node)
    after which the job avoids the node for an hour, if other nodes have capacity for the whole gang; 0: never."""
    spare_nodes: Annotated[int, Field(ge=0, le=MOST_SPARES)] = 0
    """Pods of the trainer beyond `trainer.nodes` that wait on nodes of their own, as far as there is capacity, with image and imports loaded. When a
    pod of the gang is lost, the next attempt starts with one of them in its place. They hold their GPUs without using them."""

    @property
    def preempts(self) -> bool:
        """Whether running jobs of lower priority leave for this one."""
        return self.preemption_policy != "Never"

    @property
    def facts(self) -> Backend:
        """What is known of the backend."""
        return BACKENDS[self.backend]


class LifecycleSpec(Model):
    """Failures and time limits."""

    max_restarts: NonNegativeInt = 3
    """Failures in a row that are followed by a restart; one more fails the job. Exceptions, killed processes and stalls count; lost nodes, evictions
    and drains do not. An attempt that has done three steps and saved a checkpoint starts the count anew. A wrong configuration fails the job at
    once."""
    backoff_seconds: NonNegativeInt = 5
    """Seconds before the first counted restart. The delay doubles with each further one, up to ten minutes."""
    stall_timeout_seconds: PositiveInt = 1800
    """Seconds without progress after which an attempt fails. Every sample, micro-batch, transfer and file counts as progress."""
    drain_timeout_seconds: PositiveInt = 600
    """Seconds that a drain waits for the end of the step and its checkpoint, before it stops the attempt."""
    rank_grace_seconds: Annotated[int, Field(ge=1, le=600)] = 10
    """Seconds between SIGTERM and SIGKILL when the ranks of an attempt on GPUs are ended and do not end at once. A process that is killed while its
    GPU computes can look like broken hardware (Xid 45). Ranks on CPUs get 2 seconds."""
    node_loss_seconds: PositiveInt = 120
    """Seconds that a node may be unreachable before its pods count as lost, and that a deleted pod may outlive its grace period before it counts as
    stuck. Other pods stand in for both."""
    stranded_seconds: PositiveInt = 600
    """Seconds that pods of the job may hold their nodes although others have none, so that no attempt can run. Then all pods are released, and the
    job starts again when there is capacity for the whole gang."""
    pending_deadline_seconds: PositiveInt | None = None
    """Seconds after the job was created or resumed in which all trainer pods have to start; otherwise the job fails. Unset: it waits."""
    active_deadline_seconds: PositiveInt | None = None
    """Seconds that the job's attempts may run in total. Then the job drains to a checkpoint and fails. Unset: no limit."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Seconds after which the children of a finished job are deleted; the RLJob itself stays, so that GitOps does not run it again. Unset: the pods
    are deleted at once, and the other children stay."""
