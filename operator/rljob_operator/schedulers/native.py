"""Kubernetes' own gang scheduling: a PodGroup of scheduling.k8s.io for each role, as 1.37 serves them (v1beta1, feature gate GenericWorkload)."""

import hashlib
import json
from typing import Any

from rljob_api import names
from rljob_api.sizing.layout import required_pods
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import Object
from rljob_operator.schedulers.base import PodSettings, Scheduler


class Native(Scheduler):
    """One PodGroup has one count, in which rollouts would stand in for trainers; so each role has its own. kube-scheduler starts no pod of a group
    until `minCount` of them fit, and pods beyond that (spares, further rollouts) when they fit.

    There is no Workload: it holds templates for controllers that make groups from it, and no template may be added to it later.
    """

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        if not required_pods(spec)[role]:  # each of its pods may come and go, and no group has a count of 0
            return PodSettings()
        return PodSettings(pod={"schedulingGroup": {"podGroupName": _name(job, spec, role)}})

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        return [
            {
                "apiVersion": "scheduling.k8s.io/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": _name(job, spec, role)},
                "spec": _fixed(spec, role) | {"schedulingPolicy": {"gang": {"minCount": count}}},
            }
            for role, count in required_pods(spec).items()
            if count
        ]


def _name(job: RLJobMeta, spec: RLJobSpec, role: str) -> str:
    """Another one when a field changes that may not change in a live group, so that the next attempt's pods are of another group. The old one, which
    no pod names any more, holds nothing, and the garbage collector deletes it with the job."""
    digest = hashlib.sha256(json.dumps(_fixed(spec, role), sort_keys=True).encode()).hexdigest()[:8]
    return f"{names.gang(job.name, role)}-{digest}"


def _fixed(spec: RLJobSpec, role: str) -> dict[str, Any]:
    """Fields of a group's spec that are immutable. Its priority has to be that of its pods; a gang that lost one pod to preemption would do nothing
    with the others, while servers do without each other. Spares are of the trainers' group, since a pod can name one only when it is created, and a
    spare may become a member: so preemption of one takes the gang, too."""
    priority = spec.template(role).priority_class_name
    mode = "all" if names.is_model_role(role) else "single"
    return {"disruptionMode": {mode: {}}} | ({"priorityClassName": priority} if priority else {})
