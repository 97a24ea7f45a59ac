"""Kueue: one plain pod group over all StatefulSets. Names are those of Kueue 0.19."""

from rljob_api import names
from rljob_api.sizing.layout import pods_of
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.schedulers.base import PodSettings, Scheduler

KUEUE = "kueue.x-k8s.io"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label with a pod's ordinal, by the StatefulSet controller."""


class Kueue(Scheduler):
    """The group's pods are replaced in place (`serving`: kueue#13830, #14632). The StatefulSets themselves carry no queue: each would be a workload
    of its own. Topology is requested from the narrowest level upwards; index labels make ranks follow it.
    """

    fields = frozenset({"queue", "topologyLevels"})
    scalable = False
    """A pod group keeps the number of pods that it was admitted with."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        labels = {
            f"{KUEUE}/queue-name": spec.scheduling.queue or "",
            f"{KUEUE}/pod-group-name": names.pod_group(job.name),
        }
        annotations = {
            f"{KUEUE}/pod-group-total-count": str(sum(pods_of(spec).values())),
            f"{KUEUE}/pod-group-serving": "true",
        }
        if levels := spec.scheduling.topology_levels:
            annotations |= {
                f"{KUEUE}/podset-preferred-topology": levels[-1],
                f"{KUEUE}/pod-group-pod-index-label": POD_INDEX,
            }
        return PodSettings(labels, annotations)
