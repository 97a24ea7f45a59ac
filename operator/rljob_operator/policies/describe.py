"""The part of the status that describes the rest, for people and tools."""

from rljob_api import names
from rljob_api.sizing.layout import gang_sizes, pods_of
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, ProgressStatus, RoleStatus, SpareStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.avoided_nodes import excluded
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.ordinals import wanted_ordinals
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.model.spares import is_unfit
from rljob_operator.policies.change import Change, set_
from rljob_operator.policies.conditions import conditions
from rljob_operator.policies.message import message
from rljob_operator.policies.state import state


def describe(s: Snapshot, status: JobStatus) -> Change:
    status = set_(status, observed_generation=s.job.generation, **_roles(s, status))
    new_state = state(s, status)
    status = set_(status, state=new_state, message=message(s, status))
    return Change(set_(status, conditions=conditions(s, status, new_state)))


def _roles(s: Snapshot, status: JobStatus) -> dict[str, object]:
    spec = s.spec_of(status.attempt)
    freed = bool(status.outcome) or status.suspended or spec is None
    wanted = pods_of(spec) | gang_sizes(spec) if spec else dict.fromkeys(names.ROLES, 0)
    spares = _spares(s, status, spec) if spec else []
    progress = status.progress
    if spec and not progress.text:
        steps = spec.train.steps or 0  # with `epochs`, the trainer reports them
        progress = ProgressStatus(steps=steps, text=f"0/{steps or '?'}")
    counted = {role: _role(s, role, 0 if freed else count, spares) for role, count in wanted.items()}
    trainers, rollouts = counted.pop(names.ROLE_TRAINER), counted.pop(names.ROLE_ROLLOUT, RoleStatus())
    gangs = {role: found for role, found in counted.items() if names.is_model_role(role)}
    pools = {role: found for role, found in counted.items() if role not in gangs}
    found = {"trainer": trainers, "gangs": gangs, "rollout": rollouts, "pools": pools}
    return found | {"progress": progress, "spares": SpareStatus() if freed else _spare_status(s, status, spec, spares)}


def _spares(s: Snapshot, status: JobStatus, spec: RLJobSpec) -> list[Pod]:
    """The trainer's pods that stand by."""
    wanted = wanted_ordinals(status, s.pods, spec, s.lifecycle.node_loss_seconds, s.now)[names.ROLE_TRAINER]
    return [pod for pod in s.of(names.ROLE_TRAINER) if pod.ordinal in wanted[spec.trainer.nodes :]]


def _spare_status(s: Snapshot, status: JobStatus, spec: RLJobSpec | None, spares: list[Pod]) -> SpareStatus:
    if spec is None or not spec.scheduling.spare_nodes:
        return SpareStatus()
    fit = (pod for pod in spares if pod.running and not is_unfit(pod, excluded(status, s.now)))
    members = status.attempt.of(names.ROLE_TRAINER) if status.attempt and is_open(status.attempt) else []
    return SpareStatus(
        desired=spec.scheduling.spare_nodes,
        warm=sum(s.report(pod) is not None for pod in fit),
        standing_in=[m.pod for m in members if int(m.pod.rpartition("-")[2]) >= spec.trainer.nodes],
    )


def _role(s: Snapshot, role: str, desired: int, spares: list[Pod]) -> RoleStatus:
    ready = sum(p.ready and not p.deleting and p not in spares for p in s.of(role))
    text = f"{ready}/{desired}" if desired else "-"
    return RoleStatus(ready=ready, desired=desired, text=text, selector=names.selector(s.job.name, role))


DISPLAY = ("trainer", "spares", "gangs", "rollout", "pools", "message", "conditions")
OBSERVATIONAL = (
    *DISPLAY,
    "state",
    "observed_generation",
    "progress",
    "checkpoint",
    "lost_steps",
    "first_step_at",
    "last_rollout_failure",
    "server_failures",
    "stuck_pods",
)


def is_display(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses differ in nothing but counts, sentences and their conditions."""
    return _differ_only_in(DISPLAY, old, new)


def is_observational(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses differ only in what has happened: nothing that the operator does follows from the difference."""
    return _differ_only_in(OBSERVATIONAL, old, new)


def _differ_only_in(fields: tuple[str, ...], old: JobStatus, new: JobStatus) -> bool:
    return new.model_copy(update={field: getattr(old, field) for field in fields}) == old
