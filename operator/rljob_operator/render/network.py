"""Who may connect to a job's pods. gloo and NCCL listen on ephemeral ports, so among themselves the pods may use all of them.

Policies add up: whatever else shall reach the pods, such as a Prometheus that reads vLLM's metrics, users allow by a
NetworkPolicy of their own over the label `rljob.dev/job`.
"""

from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata


def network_policy(job: RLJobMeta) -> dict[str, Any]:
    """Only the job's own pods. Connections that the pods open are not limited: data, models and reward services may be
    anywhere. The kubelet's probes come from the pod's own node, which no policy keeps out."""
    ours = {"matchLabels": names.labels(job.name)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.pods(job.name)),
        "spec": {
            "podSelector": ours,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": ours}]}],
        },
    }
