"""What a job's pods may do, and who may connect to them."""

from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.model.children import metadata

RBAC_GROUP = "rbac.authorization.k8s.io"


def access(job: RLJobMeta, reports: list[str], annotations: Mapping[str, str]) -> list[dict[str, Any]]:
    """ServiceAccount, Role and RoleBinding: the pods may read the control message and write the job's reports, by name, and nothing else.

    All pods of a job share one account, since they run the same image on the same volumes. A Role cannot tell them apart, and one per pod would
    double the objects of a job, so an admission policy of the chart limits each pod to its own report. `annotations`: of the account.
    """
    name = names.pods(job.name)
    meta = metadata(job, name)
    rules = [
        _config_maps([names.control(job.name)], ["get", "list", "watch"]),
        _config_maps(reports, ["get", "patch"]),
    ]
    account = meta | ({"annotations": dict(annotations)} if annotations else {})
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account, "automountServiceAccountToken": False},
        {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
        },
    ]


def _config_maps(objects: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": objects, "verbs": verbs}


def sandbox_account(job: RLJobMeta) -> dict[str, Any]:
    """The ServiceAccount of sandboxes: without rights, and without the annotations by which a cloud gives the job's pods an identity."""
    meta = metadata(job, names.sandboxes(job.name))
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False}


def network_policy(job: RLJobMeta) -> dict[str, Any]:
    """A NetworkPolicy by which only the job's own pods, but no sandbox, may connect to its pods, on all ports, since gloo and NCCL listen on
    ephemeral ones.

    Connections from the pods are not limited: data, models and reward services may be anywhere. The kubelet's probes come from the pod's own node,
    which no policy keeps out. Policies add up: whoever else has to reach the pods, such as a Prometheus that reads vLLM's metrics, is allowed by
    another NetworkPolicy on the label `rljob.dev/job`.
    """
    ours = {"matchLabels": names.labels(job.name)}
    return _network_policy(
        job, names.pods(job.name), ours, {"from": [{"podSelector": ours | _sandboxes("DoesNotExist")}]}
    )


def gateway_policy(job: RLJobMeta, has_keys: bool) -> dict[str, Any]:
    """A NetworkPolicy by which clients may connect to the gateway of a service, at its port for them: from anywhere, if they need a key, else from
    pods of the job's namespace."""
    clients = {"ports": [{"protocol": "TCP", "port": names.GATEWAY_PORT}]} | (
        {} if has_keys else {"from": [{"podSelector": {}}]}
    )
    labels = {"matchLabels": names.labels(job.name, names.ROLE_GATEWAY)}
    return _network_policy(job, names.gang(job.name, names.ROLE_GATEWAY), labels, clients)


def _network_policy(job: RLJobMeta, name: str, pods: dict[str, Any], admitted: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, name),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [admitted]},
    }


def gateway_service(job: RLJobMeta) -> dict[str, Any]:
    """The Service by which clients find the gateway, whichever pod it is."""
    port = {"name": "http", "protocol": "TCP", "port": names.GATEWAY_PORT, "targetPort": names.GATEWAY_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.gang(job.name, names.ROLE_GATEWAY)),
        "spec": {"selector": names.labels(job.name, names.ROLE_GATEWAY), "ports": [port]},
    }


def sandbox_network_policy(job: RLJobMeta) -> dict[str, Any]:
    """A NetworkPolicy by which sandboxes connect to nothing, not even to a name server. Who may connect to them, the other one says."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.sandboxes(job.name)),
        "spec": {
            "podSelector": {"matchLabels": names.labels(job.name)} | _sandboxes("Exists"),
            "policyTypes": ["Egress"],
        },
    }


def _sandboxes(operator: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": names.LABEL_SANDBOX, "operator": operator}]}
