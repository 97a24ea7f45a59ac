"""Metadata that all children share."""

from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta


def metadata(job: RLJobMeta, name: str, role: str | None = None) -> dict[str, Any]:
    """Labels, and this job, by its uid, as the controller: children of another job of the same name are not ours."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": names.labels(job.name, role),
        "ownerReferences": [owner],
    }
