"""Let a suspended job go on; with --from-step, continue from one of its complete checkpoints.

--from-step also opens a job again that has succeeded or failed. Checkpoints of later steps leave the lineage.
Writes a request into an annotation; spec.suspend is not edited, so a GitOps tool does not undo it.
"""

import argparse
from datetime import datetime

from kubectl_rljob import requests
from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import RESOURCE, Job


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "--from-step", type=int, metavar="N", help="step of a complete checkpoint (see `kubectl rljob checkpoints`)"
    )


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    job = cluster.job(args.name)
    if args.from_step is not None:
        check_step(job, args.from_step)
    elif job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: it goes on only from a given step. {available(job)}",
            job.command("resume", "--from-step N"),
        )
    elif not job.wants_suspend:
        print(f"{RESOURCE}/{job.name} unchanged (not suspended)")
        return 0
    requests.send(cluster, job, "resume", args.from_step)
    print(
        f"{RESOURCE}/{job.name} resume requested" + ("" if args.from_step is None else f" from step {args.from_step}")
    )
    return 0


def check_step(job: Job, step: int) -> None:
    """Only complete checkpoints that are kept can be continued from."""
    if step not in {c.step for c in job.status.checkpoint.kept}:
        raise UserError(
            f"--from-step: {job.title} has no complete checkpoint of step {step}. {available(job)}",
            job.command("checkpoints"),
        )


def available(job: Job) -> str:
    steps = [str(c.step) for c in job.status.checkpoint.kept]
    return f"Available steps: {', '.join(steps)}." if steps else "It has no complete checkpoints."
