"""Start a job's gang again: it finishes its step, saves, and goes on as the next attempt, with the image and spec of now.

Not counted against spec.lifecycle.maxRestarts. Writes a request into an annotation.
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
    attempt = job.status.attempt
    if job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: it goes on only from a given step",
            job.command("resume", "--from-step N"),
        )
    if attempt is None or attempt.closed:
        raise UserError(f"{job.title} has no attempt that runs (state: {job.status.state})", job.command("status"))
    requests.send(cluster, job, "restart")
    print(f"{RESOURCE}/{job.name} restart requested")
    return 0
