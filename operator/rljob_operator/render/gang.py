"""A role's pods: the StatefulSet, and the token of the rollout servers."""

from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render.meta import metadata


def stateful_set(job: RLJobMeta, role: str, replicas: int, template: Mapping[str, Any]) -> dict[str, Any]:
    """A role's StatefulSet. It creates all pods at once (Parallel) and replaces none when the template changes (OnDelete): attempts decide when.

    There is no Service of that name, because pods find each other by address. Each would cost the cluster ten writes while a gang of four starts.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, names.gang(job.name, role), role),
        "spec": {
            "replicas": replicas,
            "serviceName": names.pods(job.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": names.labels(job.name, role)},
            "template": template,
        },
    }


def resized(job: RLJobMeta, live: Mapping[str, Any], role: str, replicas: int) -> dict[str, Any]:
    """A live StatefulSet with another number of replicas."""
    spec = live["spec"] | {"replicas": replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, names.gang(job.name, role), role),
        "spec": spec,
    }


def token(job: RLJobMeta, value: str, number: int = 1) -> dict[str, Any]:
    """The Secret with the rollout servers' token. We may create it but not read it: an existing one is this job's, since its name has the job's
    uid."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.token(job.name, job.uid, number)),
        "stringData": {names.TOKEN_KEY: value},
        "immutable": True,
    }
