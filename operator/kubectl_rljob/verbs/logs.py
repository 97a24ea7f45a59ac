"""Print the log of one pod of a job: by default the trainer pod of rank 0, which prints the steps.

Logs of earlier attempts are kept on the job's volume, under logs/attempt-N of spec.checkpoint.path.
"""

import argparse
import sys
from datetime import datetime

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from rljob_api import names

CONTAINERS = {names.ROLE_TRAINER: names.TRAINER_CONTAINER, names.ROLE_ROLLOUT: names.ROLLOUT_CONTAINER}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument("--role", choices=CONTAINERS, default=names.ROLE_TRAINER, help="kind of pod (default: trainer)")
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--rank",
        type=int,
        default=0,
        metavar="N",
        help="global rank of a trainer, or ordinal of a rollout (default: 0)",
    )
    one.add_argument("--pod", metavar="POD", help="name of a pod of that role")
    parser.add_argument("-p", "--previous", action="store_true", help="log of the container's previous life")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it is written")
    parser.add_argument("--tail", type=int, metavar="LINES", help="only the last lines")


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    job = cluster.job(args.name)
    pod = args.pod or pod_of(job, args.role, args.rank)
    check_pod(job, args.role, pod, cluster.pods(job, args.role))
    query = {"container": CONTAINERS[args.role]}
    query |= {key: "true" for key in ("previous", "follow") if getattr(args, key)}
    query |= {} if args.tail is None else {"tailLines": str(args.tail)}
    for piece in cluster.log(job, pod, query):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return 0


def pod_of(job: Job, role: str, rank: int) -> str:
    """The pod of a trainer's global rank (by the attempt's members: rank is not ordinal) or of a rollout's ordinal."""
    if role == names.ROLE_ROLLOUT or job.spec is None:
        return names.pod(job.name, role, rank)
    trainer = job.spec.trainer
    world = trainer.nodes * trainer.processes_per_node
    if not 0 <= rank < world:
        raise UserError(f"--rank {rank}: {job.title} has ranks 0 to {world - 1}")
    node_rank = rank // trainer.processes_per_node
    members = job.status.attempt.members if job.status.attempt else []
    return next((m.pod for m in members if m.node_rank == node_rank), names.pod(job.name, role, node_rank))


def check_pod(job: Job, role: str, pod: str, pods: list[str]) -> None:
    """Say what there is when the pod is not."""
    if pod in pods:
        return
    if pods:
        raise UserError(
            f"{job.title} has no {role} pod {pod}. It has: {', '.join(pods)}",
            job.command("logs", f"--role {role} --pod {pods[0]}"),
        )
    root = job.spec.checkpoint.path if job.spec else "spec.checkpoint.path"
    raise UserError(
        f"{job.title} has no {role} pods (state: {job.status.state}). "
        f"Logs of its attempts are on its volume, under {root}/logs",
        job.command("status"),
    )
