"""Ask the operator for something, once: an annotation that neither Git nor the spec owns."""

import secrets
import sys
from typing import Literal

from kubectl_rljob import gitops
from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from rljob_api import names
from rljob_api.request import Request


def send(
    cluster: Cluster, job: Job, action: Literal["suspend", "resume", "restart"], from_step: int | None = None
) -> None:
    """Write the request with a fresh nonce; tell on stderr when a GitOps tool owns the object."""
    if job.metadata.get("deletionTimestamp"):
        raise UserError(f"{job.title} is being deleted", f"kubectl get rljob {job.name} -n {job.namespace} -w")
    request = Request(job_uid=job.uid, nonce=secrets.token_hex(8), action=action, from_step=from_step)
    cluster.annotate(job, names.ANNOTATION_REQUEST, request.dump_json())
    if tool := gitops.owner(job.metadata):
        print(gitops.warning(tool, action), file=sys.stderr)
