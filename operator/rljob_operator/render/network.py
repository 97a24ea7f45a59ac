"""Who may connect to a job's pods. gloo and NCCL listen on ephemeral ports, so among themselves the pods may use all of them.

Policies add up: what else shall reach the pods, a user allows by a NetworkPolicy of his own over the label `rljob.dev/job`.
"""

from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata


def network_policy(job: RLJobMeta) -> dict[str, Any]:
    """From outside only the port of the rollout server, where /health and /metrics are open and all else asks for the job's token. Connections
    that the pods open are not limited: data, models and reward services may be anywhere."""
    ours = {"matchLabels": names.labels(job.name)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.pods(job.name)),
        "spec": {
            "podSelector": ours,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": ours}]},
                {"ports": [{"protocol": "TCP", "port": names.ROLLOUT_PORT}]},
            ],
        },
    }
