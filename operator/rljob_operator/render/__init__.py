"""The children that should exist, as a pure function of the snapshot and the decided status."""

from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.sizing.layout import pods_of
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.model.children import controls
from rljob_operator.model.ordinals import wanted_ordinals
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.render.access import access, network_policy
from rljob_operator.render.channel import control, report
from rljob_operator.render.gang import resized, stateful_set, token
from rljob_operator.render.meta import metadata
from rljob_operator.render.template import template_hashes
from rljob_operator.schedulers import scheduler_of

Object = dict[str, Any]


def render(s: Snapshot, status: JobStatus) -> list[Object]:
    """In the order in which they are written: pods come last, when all they need is there."""
    spec, released = s.spec_of(status.attempt), status.suspended or bool(status.outcome)
    if status.cleaned_up:
        return []
    if spec is None:
        return _emptied(s) if released else []
    sizes = _sizes(s, status, spec)
    reports = {names.report(names.pod(s.job.name, role, i)): role for role, size in sizes.items() for i in range(size)}
    objects = access(s.job, list(reports))
    objects += [network_policy(s.job)] if s.network_policy else []
    objects += [report(s.job, role, name) for name, role in reports.items()]
    objects += [control(s, status, spec), *scheduler_objects(s.job, spec)]
    sets = {role: s.children.get(("StatefulSet", names.gang(s.job.name, role))) for role in sizes}
    absent = [role for role, live in sets.items() if live is None and not _in_the_way(s, role)]
    if spec.has_token and (not (released or _in_use(status)) or absent):
        objects += _token(s, status, sets, template_hashes(s, spec, status.token))
    for role, live in sets.items():
        if live is not None and _in_use(status):
            objects += [] if names.is_model_role(role) else [resized(s.job, live, role, sizes[role])]
        elif live is not None or role in absent:
            objects.append(stateful_set(s.job, spec, role, 0 if released else sizes[role], status.token))
    return objects + [resized(s.job, live, role, 0) for role, live in _sets(s).items() if role not in sizes]


def _token(
    s: Snapshot, status: JobStatus, sets: Mapping[str, Mapping[str, Any] | None], fresh: Mapping[str, str]
) -> list[Object]:
    """The Secret, before the first pods that need it. Where such pods are, it is there, or its value is lost: see policies/credentials.py."""
    if any(pod.template_hash == fresh.get(pod.role) for pod in s.pods):
        return []
    settled = all(
        live is not None and live["spec"]["replicas"] and _hash(live) == fresh[role] for role, live in sets.items()
    )
    return [] if settled else [token(s.job, s.fresh_token, status.token)]


def _hash(live: Mapping[str, Any]) -> str:
    annotations = live["spec"]["template"]["metadata"].get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""))


def scheduler_objects(job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
    """What the job's scheduler wants alongside the StatefulSets."""
    objects = scheduler_of(spec).objects(job, spec)
    return [obj | {"metadata": metadata(job, obj["metadata"]["name"])} for obj in objects]


def _emptied(s: Snapshot) -> list[Object]:
    """A job that is suspended or has ended gives its pods back, whatever became of its spec."""
    return [resized(s.job, live, role, 0) for role, live in _sets(s).items()]


def _sets(s: Snapshot) -> dict[str, Mapping[str, Any]]:
    """StatefulSets that there are, by role, which their names say: labels may be lost."""
    live = (child for (kind, _), child in s.children.items() if kind == "StatefulSet" and controls(s.job, child))
    return {child["metadata"]["name"].removeprefix(names.gang(s.job.name, "")): child for child in live}


def _sizes(s: Snapshot, status: JobStatus, spec: RLJobSpec) -> dict[str, int]:
    """By role, if the task has it: large enough for the highest ordinal that is wanted."""
    wanted = wanted_ordinals(status, s.pods, pods_of(spec), s.lifecycle.node_loss_seconds, s.now)
    return {role: max(found, default=-1) + 1 for role, found in wanted.items()}


def _in_use(status: JobStatus) -> bool:
    """While an attempt is open its pods' template stays as it is, also when the operator was updated. Only rollouts may come and go."""
    return status.attempt is not None and not status.attempt.ended_at


def _in_the_way(s: Snapshot, role: str) -> bool:
    """Pods of a former StatefulSet are still going. Their successor would fail to make its own, and back off for minutes."""
    return any(p.deleting for p in s.pods if p.role == role)
