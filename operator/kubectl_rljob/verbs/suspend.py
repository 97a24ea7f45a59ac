"""Hold a job: it finishes its step, saves a checkpoint and frees its pods.

Writes a request into an annotation; spec.suspend is not edited, so a GitOps tool does not undo it.
"""

import argparse
from datetime import datetime

from kubectl_rljob import requests
from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import RESOURCE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    job = cluster.job(args.name)
    if job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: there is nothing to suspend", job.command("status")
        )
    if job.wants_suspend:
        print(f"{RESOURCE}/{job.name} unchanged (already {'suspended' if job.status.suspended else 'suspending'})")
        return 0
    requests.send(cluster, job, "suspend")
    print(f"{RESOURCE}/{job.name} suspend requested")
    return 0
