"""What a job's pods may do: read the operator's word and write their role's reports, by name. Nothing else."""

from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata

RBAC_GROUP = "rbac.authorization.k8s.io"


def access(job: RLJobMeta, role: str, reports: list[str]) -> list[dict[str, Any]]:
    name = names.gang(job.name, role)
    meta = metadata(job, name, role)
    rules = [_config_maps([names.control(job.name)], ["get", "list", "watch"])]
    if reports:  # without names a rule would mean all of them
        rules.append(_config_maps(reports, ["get", "patch"]))
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
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
