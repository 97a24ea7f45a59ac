"""Where the pods of a job are, and why: the part of its status about nodes."""

from typing import Literal

from rljob_api.base import Wire


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
