"""Parts of a job's status: what its processes have reported of their work (progress, checkpoints, the clients of a service), its vLLM servers of
several pods, and where its pods are, and why."""

from typing import Literal

from rljob_api.base import Wire
from rljob_api.protocol import Checkpoint, Failure, Point
from rljob_api.server_group import ServerPart


class ProgressStatus(Wire):
    """Progress as rank 0 reports it, refreshed at most every 30 s while nothing else changes."""

    attempt: int = 0
    """Number of the attempt that this progress is of: the last one that has chosen its checkpoint."""
    step: int = 0
    """Steps that are done."""
    steps: int = 0
    """Steps of the whole job; 0: not known yet."""
    text: str = ""
    """Steps that are done and steps of the whole job, such as `120/500`, for a column of `kubectl get`."""
    phase: str = ""
    """What the trainer is doing: fetching, loading, waiting, generating, scoring, training, syncing, saving, evaluating or
    finishing."""
    policy_step: int = 0
    """Step of the policy that rollout servers received last."""
    metric: str = ""
    """Main metric of the last step, for a column of `kubectl get`: `reward 0.612` (the mean), or `loss 1.234` for tasks without rewards."""
    metrics: dict[str, float] = {}
    """Metrics of the last step, by name."""
    history: list[Point] = []
    """Main metrics of earlier steps, thinned out over the run."""
    pace: float | None = None
    """Median duration of the last ten steps, in seconds; unset: no step is done yet."""
    saving: float | None = None
    """Seconds that the last checkpoint took until it was complete; unset: none was saved yet."""
    evaluation: dict[str, float] = {}
    """`first` and `last` mean reward on the held-out prompts; without rewards, mean loss on the held-out examples."""
    export: str = ""
    """Directory of the exported Hugging Face model, once it is written."""
    started_from: int | None = None
    """Step of the checkpoint that the attempt started from; 0: the model itself; unset: it has not chosen one yet."""
    backend: str = ""
    """Layers and kernels that the trainer uses."""
    warnings: list[str] = []
    """What the trainer warns of while it continues, such as rewards from which nothing is learnt."""
    worker_calls: dict[str, int] = {}
    """By role, calls that run in worker pods or wait for them, where `autoscaling` decides."""
    updated_at: str = ""
    """When the trainer last reported progress."""


class ServiceStatus(Wire):
    """What the gateway of a service reports."""

    clients: int = 0
    """Sessions of clients that live."""
    models: int = 0
    """Models that clients train."""
    waiting: int = 0
    """Requests that wait for trainers or rollouts."""
    trained_tokens: int = 0
    """Tokens of training that the gateway has answered since its process began."""
    sampled_tokens: int = 0
    """Tokens that were sampled since then."""
    mismatches: int = 0
    """Requests that had another result when they were repeated, since then."""
    address: str = ""
    """Where clients in the cluster find it."""


class CheckpointStatus(Wire):
    latest: Checkpoint | None = None
    """The newest complete checkpoint."""
    kept: list[Checkpoint] = []
    """All complete checkpoints that the job can go back to, oldest first."""


class ServerStatus(Wire):
    """One server of several pods: which ones, and its current generation, in which all of them started together."""

    role: str
    """`rollout`, or the name of a pool."""
    index: int
    """Number of the server in its role, the end of its name."""
    ordinals: list[int]
    """Ordinals of its pods, by node rank. The first is the head."""
    generation: int = 0
    """Number of the current or last generation; 0: none yet."""
    parts: list[ServerPart] = []
    """The pods of the generation that runs, by node rank; empty: none runs, and the next starts when all pods are there."""
    started_at: str = ""
    """When the generation that runs was started."""
    ended_boot: str = ""
    """Boot of the pod whose container ended the last generation. Until it has started again, its report is still of that boot."""
    failures: int = 0
    """Failures in a row. A generation that ran for 20 minutes resets them."""
    not_before: str = ""
    """When the next generation may start at the earliest, after a failure."""
    stranded_since: str = ""
    """Since when some of its pods hold nodes although others have none, held against `lifecycle.strandedSeconds`; empty: that is not so."""
    released_until: str = ""
    """Until when its pods, which were released for that reason, wait. Only with schedulers that do not start them together."""


class RolloutFailure(Wire):
    """The last failure of a rollout server, or of a pool's. Its pod has restarted the server, and the attempt continues."""

    pod: str
    """Name of the pod whose server failed."""
    failure: Failure
    """Failure that the pod reported."""


class PodAssignment(Wire):
    """A pod's node, chosen by the `builtin` backend."""

    pod: str
    """Name of the pod."""
    node: str
    """Node that the pod is pinned to."""
    rank: int | None = None
    """Node rank that the pod will have in its gang in the next attempt; unset: a rollout's or a pool's pod, which has none."""


class Exclusion(Wire):
    """A node that refused a pod of this job, and is avoided for a while."""

    node: str
    """Name of the node."""
    until: str
    """When the node may be used again."""
    cause: str = ""
    """Why the node refused the pod, as the cluster's scheduler says it."""


class NodeStatus(Wire):
    """A node that failures of this job point at, or that its owner wants to be left."""

    node: str
    """Name of the node."""
    state: Literal["suspect", "excluded", "needed"] = "suspect"
    """`excluded`: the job's pods go to other nodes; `needed`: they should, but no other nodes have capacity for the whole gang, so this one is used;
    `suspect`: fewer failures than `scheduling.excludeAfterFailures` point at it, or the operator has not compared capacities yet."""
    failures: list[str] = []
    """Failures that point at the node: `attempt 3`, or the uid of a pod."""
    cause: str = ""
    """The last of these failures, in one sentence."""
    until: str = ""
    """When the failures are forgotten, and with them the exclusion; empty: there are none."""
    quarantine: str = ""
    """Why its owner wants it to be left, for example `cordoned`; empty: its owner does not. See `jobs.leaveNodes` of the chart."""
    retry_at: str = ""
    """When the job tries other nodes again, after its scheduler took none of its pods there; empty: as soon as they have capacity."""


class Crossing(Wire):
    """Traffic that crosses one level of the topology. Each pair of pods counts at the widest level that separates it."""

    level: str
    """Label key of the level, or `node`."""
    pairs: int
    """Pairs of pods that exchange bytes across this level."""
    bytes_per_step: int
    """Bytes per step across this level. Estimated for a model of 8 billion parameters, since the operator cannot read config.json;
    `kubectl rljob plan --model` can."""


class PlacementReport(Wire):
    """Topology of a placement."""

    stages: list[str] = []
    """The narrowest domain that holds each pipeline stage; empty: only the whole cluster does."""
    rollouts: list[str] = []
    """Domain of each rollout; `the whole cluster`: its pods share no narrower one; empty: not placed."""
    pools: dict[str, list[str]] = {}
    """Domain of each server of a pool, by the pool's name; as of `rollouts`."""
    spares: list[str] = []
    """Domain of each spare pod of the trainer; empty: not placed."""
    gangs: dict[str, list[str]] = {}
    """The narrowest domain of each pipeline stage of another model's gang, by its role."""
    levels: list[Crossing] = []
    """What crosses each level of the topology, widest level first."""


class PlacementStatus(Wire):
    """Which pod goes to which node. Written before a pod's gate is removed."""

    assignments: list[PodAssignment] = []
    """Node of each pod that has one assigned."""
    requests: dict[str, dict[str, int]] = {}
    """Requests of a pod, by role, in thousandths of each resource's unit. They are reserved for assigned pods that are not on their nodes yet."""
    excluded: list[Exclusion] = []
    """Nodes that are avoided for ten minutes, because a pod could not be bound to them."""
    problem: str = ""
    """Why the gang cannot be placed; empty: it is placed, or was not tried."""
    waiting_since: str = ""
    """Since when the gang cannot be placed; empty: it is placed, or was not tried."""
    reserved: list[str] = []
    """Nodes that are kept for the job, and that it gets once others have left them."""
    expected_at: str = ""
    """When these should be free, by the measured steps of who holds them; empty: not known."""
    borrowed_until: str = ""
    """Until when the job has nodes that are reserved for another, to which it leaves them after that; empty: it has none of these."""
    unschedulable: str = ""
    """Why no node of the cluster takes a pod, for example because its claim does not exist; empty: none says so."""
    report: PlacementReport = PlacementReport()


class Preemption(Wire):
    """The job leaves, or has left, its nodes to a job of higher priority, or to one for which they are reserved."""

    by: str
    """Namespace and name of that job."""
    since: str
    """When this was decided."""
    released: bool = False
    """Whether no pod holds a node any more. From then on the job waits for nodes as others do."""
