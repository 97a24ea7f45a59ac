"""What the scheduling backends want of pods and beside them. Names are those of Kueue 0.19 and Volcano 1.15."""

from dataclasses import dataclass, field
from typing import Any

from rljob_api import names
from rljob_api.quantity import Resources, add, exact
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata
from rljob_placement.gang import Gang

KUEUE = "kueue.x-k8s.io"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label with a pod's ordinal, by the StatefulSet controller."""
VOLCANO = "scheduling.volcano.sh"


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Additions to a pod template."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)


def pod_settings(job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
    backend = spec.scheduling.backend
    if backend == "builtin":
        return PodSettings(pod={"schedulingGates": [{"name": names.GATE}]})
    if backend == "kueue":
        return _kueue(job, spec)
    if backend == "volcano":
        annotations = {"scheduling.k8s.io/group-name": names.pod_group(job.name), "volcano.sh/task-spec": role}
        return PodSettings(annotations=annotations, pod={"schedulerName": "volcano"})
    return PodSettings()


def companions(job: RLJobMeta, spec: RLJobSpec) -> list[dict[str, Any]]:
    """Objects beside the StatefulSets."""
    return [_pod_group(job, spec)] if spec.scheduling.backend == "volcano" else []


def _kueue(job: RLJobMeta, spec: RLJobSpec) -> PodSettings:
    """One plain pod group over both StatefulSets, whose pods are replaced in place (`serving`: kueue#13830, #14632). The StatefulSets themselves
    carry no queue: each would be a workload of its own. Topology is asked for from the narrowest level upwards; index labels make ranks follow it.
    """
    labels = {
        f"{KUEUE}/queue-name": spec.scheduling.queue or "",
        f"{KUEUE}/pod-group-name": names.pod_group(job.name),
    }
    annotations = {
        f"{KUEUE}/pod-group-total-count": str(spec.trainer.nodes + spec.rollout.replicas),
        f"{KUEUE}/pod-group-serving": "true",
    }
    if levels := spec.scheduling.topology_levels:
        annotations |= {
            f"{KUEUE}/podset-preferred-topology": levels[-1],
            f"{KUEUE}/pod-group-pod-index-label": POD_INDEX,
        }
    return PodSettings(labels, annotations)


def _pod_group(job: RLJobMeta, spec: RLJobSpec) -> dict[str, Any]:
    """The gang's minimum, by role: without it further rollouts would count as trainers."""
    gang = Gang.of(spec)
    members = {names.ROLE_TRAINER: gang.trainers, names.ROLE_ROLLOUT: gang.minimum}
    demands = {names.ROLE_TRAINER: gang.trainer, names.ROLE_ROLLOUT: gang.rollout}
    total: Resources = {}
    for role, count in members.items():
        total = add(total, {k: v * count for k, v in demands[role].requests.items() if k != "pods"})
    wanted = {
        "minMember": sum(members.values()),
        "minTaskMember": {role: count for role, count in members.items() if count},
        "minResources": {name: exact(amount) for name, amount in total.items()},
        "queue": spec.scheduling.queue,
        "priorityClassName": spec.trainer.template.priority_class_name,
    }
    return {
        "apiVersion": f"{VOLCANO}/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(job, names.pod_group(job.name)),
        "spec": {k: v for k, v in wanted.items() if v},
    }
