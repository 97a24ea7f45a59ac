"""Kubernetes events about a job."""

import socket
import uuid

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import Object
from rljob_operator.policies.decide import Event
from rljob_operator.times import stamp


def event_object(job: RLJobMeta, event: Event, now: float) -> Object:
    """A core/v1 Event about the job. `now`: seconds since the epoch."""
    about = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
