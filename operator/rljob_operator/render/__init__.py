"""The children that should exist, as a pure function of the snapshot and the decided status."""

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.kube.api import Object
from rljob_operator.model.children import controls, metadata
from rljob_operator.model.ordinals import frees_its_node, is_held, target
from rljob_operator.model.snapshot import Snapshot, Target, is_open
from rljob_operator.render.access import (
    access,
    gateway_policy,
    gateway_service,
    network_policy,
    sandbox_account,
    sandbox_network_policy,
)
from rljob_operator.render.agent_sandbox import claimed_sandboxes
from rljob_operator.render.channel import control, report
from rljob_operator.render.template import newest_hashes, newest_templates, resized, stateful_set, token
from rljob_operator.schedulers import scheduler_of


def render(s: Snapshot, status: JobStatus) -> list[Object]:
    """All children of the job, none of those that are to be deleted. `reconcile.writer.waves` decides the order of writes."""
    current = target(s, status)
    freed = status.suspended or bool(status.outcome or status.released_until)
    if status.cleaned_up:
        return []
    if current is None:
        return _scaled_to_zero(s, status) if freed else []
    spec = current.spec
    # While an attempt is open, templates stay as they are, even if the operator was updated, and only servers and spares may come and go
    in_use = is_open(status.attempt)
    waits = _waits_for_nodes(s, status, spec)
    sizes = _sizes(current, waits)
    reports = {names.report(names.pod(s.job.name, role, i)): role for role, i in _reporting(sizes)}
    objects = access(s.job, list(reports), s.policy.service_account.annotations)
    objects += [sandbox_account(s.job)] if spec.environments else []
    objects += _network_policies(s, spec)
    objects += _for_clients(s, spec)
    objects += [report(s.job, role, name) for name, role in reports.items()]
    objects += [control(s, status, spec), *scheduler_objects(s.job, spec)]
    claimed = _claimed(current, freed or waits) if s.policy.agent_sandbox else {}
    for role, ordinals in claimed.items():
        objects += claimed_sandboxes(s, role, ordinals, newest_templates(s, spec, status)[role], in_use)
    others = [role for role in sizes if role not in claimed]
    sets = {role: s.children.get(("StatefulSet", names.gang(s.job.name, role))) for role in others}
    absent = [role for role, live in sets.items() if live is None and not _has_terminating_pods(s, role)]
    if spec.has_token and (not (freed or in_use) or absent):
        filled = {role: live for role, live in sets.items() if sizes[role]}
        objects += _token(s, status, filled, newest_hashes(s, spec, status))
    for role, live in sets.items():
        if live is not None and in_use:
            fixed = names.is_model_role(role) and not (role == names.ROLE_TRAINER and spec.scheduling.spare_nodes)
            objects += [] if fixed else [resized(s.job, live, role, sizes[role])]
        elif live is not None or role in absent:
            template = newest_templates(s, spec, status)[role]
            leaves = freed and not _remains(status, role)
            objects.append(stateful_set(s.job, role, 0 if leaves else sizes[role], template))
    return objects + [resized(s.job, live, role, 0) for role, live in _sets(s).items() if role not in sets]


def _reporting(sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Roles and ordinals of the pods that report: sandboxes cannot."""
    return ((role, i) for role, size in sizes.items() if not names.is_sandbox_role(role) for i in range(size))


def _network_policies(s: Snapshot, spec: RLJobSpec) -> list[Object]:
    if not s.network_policy:
        return []
    return [network_policy(s.job), *([sandbox_network_policy(s.job)] if spec.environments else [])]


def _for_clients(s: Snapshot, spec: RLJobSpec) -> list[Object]:
    """The Service of a gateway, and who may connect to it."""
    if names.ROLE_GATEWAY not in spec.pods:
        return []
    policies = [gateway_policy(s.job, bool(spec.service.keys))] if s.network_policy else []
    return [gateway_service(s.job), *policies]


def _remains(status: JobStatus, role: str) -> bool:
    """Whether pods of the role stay although the job has no pods otherwise."""
    return names.stays(role) and not status.outcome


def _token(
    s: Snapshot, status: JobStatus, sets: Mapping[str, Mapping[str, Any] | None], newest: Mapping[str, str]
) -> list[Object]:
    """The token's Secret, before the first pods that need it. We may not read Secrets: once such pods exist, it exists too, or it was deleted, which
    policies/pods.py handles."""
    if any(pod.template_hash == newest.get(pod.role) for pod in s.pods):
        return []
    settled = all(
        live is not None and live["spec"]["replicas"] and _hash(live) == newest[role] for role, live in sets.items()
    )
    return [] if settled else [token(s.job, s.fresh_token, status.token)]


def _hash(live: Mapping[str, Any]) -> str:
    annotations = live["spec"]["template"]["metadata"].get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""))


def scheduler_objects(job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
    """Objects that the job's scheduler needs alongside the StatefulSets, such as a PodGroup."""
    objects = scheduler_of(spec).objects(job, spec)
    return [obj | {"metadata": metadata(job, obj["metadata"]["name"])} for obj in objects]


def _scaled_to_zero(s: Snapshot, status: JobStatus) -> list[Object]:
    """The StatefulSets of a job whose spec is invalid: when it is suspended or has ended, it still frees its pods."""
    return [resized(s.job, live, role, 0) for role, live in _sets(s).items() if not _remains(status, role)]


def _sets(s: Snapshot) -> dict[str, Mapping[str, Any]]:
    """Live StatefulSets that the job controls, by role. The role is taken from the name, since labels may have been removed."""
    live = (child for (kind, _), child in s.children.items() if kind == "StatefulSet" and controls(s.job, child))
    return {child["metadata"]["name"].removeprefix(names.gang(s.job.name, "")): child for child in live}


def _sizes(current: Target, waits: bool) -> dict[str, int]:
    """Replicas of each role's StatefulSet: enough for the highest ordinal that is wanted. `waits`: see `_waits_for_nodes`."""
    sizes = {role: max(ordinals, default=-1) + 1 for role, ordinals in current.ordinals.items()}
    return {
        role: 0 if waits and not (names.is_placed(role) or names.stays(role)) else size for role, size in sizes.items()
    }


def _claimed(current: Target, none: bool) -> dict[str, list[int]]:
    """Ordinals of the pods of environments that agent-sandbox makes, by role. `none`: there are to be none now."""
    roles = filter(names.is_sandbox_role, current.ordinals)
    return {role: [] if none else list(current.ordinals[role]) for role in roles}


def _waits_for_nodes(s: Snapshot, status: JobStatus, spec: RLJobSpec) -> bool:
    """Whether the job has no nodes, or leaves them. Pods that are not placed would then only take room, from itself and from others. But a group of
    pods whose number is fixed is admitted with all of them."""
    if is_open(status.attempt) or not spec.scheduling.facts.scalable:
        return False
    return status.is_leaving or not any(frees_its_node(s, pod) for pod in s.placed)


def _has_terminating_pods(s: Snapshot, role: str) -> bool:
    """Whether pods of a former StatefulSet are still terminating. A new one could not create pods of the same names, and would back off for
    minutes. Pods that do not end are not waited for."""
    limit = s.lifecycle.node_loss_seconds
    return any(p.deleting and not is_held(p, limit, s.now) for p in s.pods if p.role == role)
