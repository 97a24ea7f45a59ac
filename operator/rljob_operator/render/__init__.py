"""The children that should exist, as a pure function of the snapshot and the decided status."""

from typing import Any

from rljob_api import names
from rljob_api.status import JobStatus
from rljob_operator.render.backend import companions
from rljob_operator.render.channel import control, report
from rljob_operator.render.gang import service, stateful_set, token
from rljob_operator.render.rbac import access
from rljob_operator.snapshot import Snapshot

Object = dict[str, Any]


def render(s: Snapshot, status: JobStatus) -> list[Object]:
    """In the order in which they are written: pods come last, when all they need is there."""
    spec = s.spec_of(status.attempt)
    if spec is None:
        return []
    released = status.suspended or bool(status.outcome)
    sizes = {names.ROLE_TRAINER: spec.trainer.nodes, names.ROLE_ROLLOUT: spec.rollout.replicas}
    reports = {names.report(names.pod(s.job.name, role, i)): role for role, size in sizes.items() for i in range(size)}
    objects = [*access(s.job, list(reports)), service(s.job)]
    objects += [report(s.job, role, name) for name, role in reports.items()]
    objects += [control(s, status, spec), *companions(s.job, spec)]
    for role, size in sizes.items():
        exists = ("StatefulSet", names.gang(s.job.name, role)) in s.children
        if exists and not _in_use(status):
            objects.append(stateful_set(s.job, spec, role, 0 if released else size))
        elif not exists and not _in_the_way(s, role):
            objects += [token(s.job, s.fresh_token), stateful_set(s.job, spec, role, 0 if released else size)]
    return objects


def _in_use(status: JobStatus) -> bool:
    """While an attempt is open its pods' template stays as it is, also when the operator was updated."""
    return status.attempt is not None and not status.attempt.closed


def _in_the_way(s: Snapshot, role: str) -> bool:
    """Pods of a former StatefulSet are still going. Their successor would fail to make its own, and back off for minutes."""
    return any(p.deleting for p in s.pods if p.role == role)
