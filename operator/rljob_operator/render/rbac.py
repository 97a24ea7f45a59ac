"""What a job's pods may do: read the operator's word and write the job's reports, by name. Nothing else.

All pods of a job run the same image on the same volumes, so they have one account. An admission policy narrows each to its own report (see the
chart): a Role cannot tell pods apart, and one per pod would double the objects of a job.
"""

from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata

RBAC_GROUP = "rbac.authorization.k8s.io"


def access(job: RLJobMeta, reports: list[str]) -> list[dict[str, Any]]:
    name = names.pods(job.name)
    meta = metadata(job, name)
    rules = [
        _config_maps([names.control(job.name)], ["get", "list", "watch"]),
        _config_maps(reports, ["get", "patch"]),
    ]
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
