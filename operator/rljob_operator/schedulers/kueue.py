"""Kueue: all pods of a job are one plain pod group, over all StatefulSets. Labels and annotations are those of Kueue 0.18 and 0.19."""

from rljob_api import names
from rljob_api.sizing.layout import grouped_pods, server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.schedulers.base import PodSettings, Scheduler

KUEUE = "kueue.x-k8s.io"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""Label in which the StatefulSet controller puts a pod's ordinal."""


class Kueue(Scheduler):
    """Pods of the group may be replaced (`pod-group-serving`). The StatefulSets have no queue label, which would make each a
    workload of its own. The narrowest topology level is preferred, or one is required, and ranks follow it by the pods' ordinals. Servers of several
    pods are slices: Kueue admits the group only if each of them is in one domain of the narrowest level.
    """

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        labels = {
            f"{KUEUE}/queue-name": spec.scheduling.queue or "",
            f"{KUEUE}/pod-group-name": names.pod_group(job.name),
        }
        annotations = {
            f"{KUEUE}/pod-group-total-count": str(sum(grouped_pods(spec).values())),
            f"{KUEUE}/pod-group-serving": "true",
        }
        if levels := spec.scheduling.topology_levels:
            required = spec.scheduling.required_level
            annotations |= {
                f"{KUEUE}/podset-{'required' if required else 'preferred'}-topology": required or levels[-1],
                f"{KUEUE}/pod-group-pod-index-label": POD_INDEX,
            }
            nodes = server_nodes(spec, role)
            if nodes > 1:
                annotations |= {
                    f"{KUEUE}/podset-slice-required-topology": levels[-1],
                    f"{KUEUE}/podset-slice-size": str(nodes),
                }
        return PodSettings(labels, annotations)
