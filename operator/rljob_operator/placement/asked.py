"""What a job asks of the cluster: which of its pods have no seat, and which stay where they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api import names
from rljob_api.placement.cluster import Node
from rljob_api.placement.gang import Gang
from rljob_api.placement.plan import Stay
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.ordinals import ordinals, trainer_ordinals
from rljob_operator.snapshot import Pod
from rljob_operator.times import seconds

EXCLUDED_SECONDS = 600.0
"""How long a job leaves a node alone that did not take a pod of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """As much of a job as its placement needs."""

    job: RLJobMeta
    spec: RLJobSpec
    status: JobStatus
    pods: Sequence[Pod]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One job's wish."""

    job: RLJobMeta
    urgent: bool
    """Trainers, or rollouts of the minimum, have no place; otherwise further rollouts, or ranks."""
    priority: int
    gang: Gang
    homes: Mapping[str, str]
    """Nodes of pods that stay, and of seats that are set aside, by pod."""
    stay: Stay
    excluded: frozenset[str]
    """Nodes that did not take a pod of this job."""

    @property
    def turn(self) -> tuple[bool, int, str, str]:
        """Sorts: urgent first, then by priority, then by age."""
        return (not self.urgent, -self.priority, self.job.creation_timestamp, self.job.uid)


def places_itself(spec: RLJobSpec | None, status: JobStatus) -> bool:
    """Whether this backend has something to do with the job now."""
    if spec is None or spec.scheduling.backend != "builtin" or status.outcome or status.suspended:
        return False
    return not (status.override.suspend if status.override else spec.suspend)


def asked(view: View, nodes: Mapping[str, Node]) -> Asked | None:
    """None: every pod has its seat."""
    spec, status = view.spec, view.status
    if not places_itself(spec, status):
        return None
    gang = Gang.of(spec)
    trainers, rollouts = pod_names(view.job.name, spec, status, view.pods, view.now)
    seats = {seat.pod: seat for seat in status.placement.seats} if status.placement else {}
    homes = {name: home for name in (*trainers, *rollouts) if (home := _home(view, name, gang, nodes))}
    settled = all(name in seats and seats[name].node == homes.get(name) for name in (*trainers, *rollouts))
    ranks = {seats[name].rank: homes.get(name) for name in trainers if name in seats}
    if settled and set(ranks) == set(range(gang.trainers)):
        return None
    whole = all(ranks.get(rank) for rank in range(gang.trainers))
    return Asked(
        job=view.job,
        urgent=any(name not in homes for name in (*trainers, *rollouts[: gang.minimum])),
        priority=spec.scheduling.priority,
        gang=gang,
        homes=homes,
        stay=Stay(
            trainers=() if whole else tuple(homes[name] for name in trainers if name in homes),
            ranks={rank: str(ranks[rank]) for rank in range(gang.trainers)} if whole else {},
            rollouts={i: homes[name] for i, name in enumerate(rollouts) if name in homes},
        ),
        excluded=excluded_nodes(status, view.now),
    )


def pod_names(
    job: str, spec: RLJobSpec, status: JobStatus, pods: Sequence[Pod], now: float
) -> tuple[list[str], list[str]]:
    """Of trainers and rollouts."""
    patience = spec.lifecycle.node_loss_seconds
    trainers = trainer_ordinals(status, pods, spec.trainer.nodes, patience, now)
    rollouts = ordinals(pods, names.ROLE_ROLLOUT, spec.rollout.replicas, patience, now)
    named = ((names.ROLE_TRAINER, trainers), (names.ROLE_ROLLOUT, rollouts))
    first, second = ([names.pod(job, role, i) for i in found] for role, found in named)
    return first, second


def excluded_nodes(status: JobStatus, now: float) -> frozenset[str]:
    placement = status.placement
    return frozenset(e.node for e in placement.excluded if _lasts(seconds(e.until), now)) if placement else frozenset()


def _lasts(until: float, now: float) -> bool:
    """One that ends further ahead than any can was written before the clock was set back."""
    return now < until <= now + EXCLUDED_SECONDS + 1.0


def _home(view: View, name: str, gang: Gang, nodes: Mapping[str, Node]) -> str:
    """The node of a pod that stays, else the seat of one that is on its way, if its node still takes it."""
    pod = next((p for p in view.pods if p.name == name), None)
    if pod and pod.node and not pod.deleting:
        lost = pod.lost_since is not None and view.now - pod.lost_since >= view.spec.lifecycle.node_loss_seconds
        return "" if lost or pod.node not in nodes else pod.node
    placement = view.status.placement
    seat = next((s.node for s in placement.seats if s.pod == name), "") if placement else ""
    demand = gang.rollout if name.startswith(names.gang(view.job.name, names.ROLE_ROLLOUT) + "-") else gang.trainer
    fits = seat in nodes and not demand.refuses(nodes[seat])
    return seat if fits else ""
