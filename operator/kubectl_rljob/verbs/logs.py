"""The log of one pod."""

import click
from click.shell_completion import CompletionItem

from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.session import Session
from rljob_api import names


@verb()
@job_name
@click.option(
    "--role",
    default=names.ROLE_TRAINER,
    metavar="ROLE",
    shell_complete=lambda _ctx, _parameter, begun: [
        CompletionItem(role) for role in names.ROLES if role.startswith(begun)
    ],
    help="kind of pod: trainer (the default), rollout, or the name of one of spec.pools",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="global rank of a trainer, or ordinal of a server (default: 0)",
)
@click.option("--pod", metavar="POD", help="name of a pod of that role")
@click.option("-p", "--previous", is_flag=True, help="log of the container's previous life")
@click.option("-f", "--follow", is_flag=True, help="continue as it is written")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="only the last lines")
def logs(
    session: Session,
    name: str,
    role: str,
    rank: int | None,
    pod: str | None,
    previous: bool,
    follow: bool,
    tail: int | None,
) -> None:
    """Print the log of one pod of a job.

    By default of the trainer pod of rank 0, which prints the steps. On a terminal, control characters are made visible.
    Logs of earlier attempts are kept on the job's volume, under logs/attempt-N of spec.checkpoint.path.
    """
    if rank is not None and pod is not None:
        raise click.UsageError("--rank and --pod exclude each other.")
    cluster = session.cluster()
    job = cluster.job(name)
    check_role(job, role)
    chosen = pod or pod_of(job, role, rank or 0)
    check_pod(job, role, chosen, cluster.pods(job, role))
    flags = {"previous": previous, "follow": follow}
    query = {"container": names.container(role)} | {key: "true" for key, on in flags.items() if on}
    query |= {} if tail is None else {"tailLines": str(tail)}
    session.terminal.stream(cluster.log(job, chosen, query))


def check_role(job: Job, role: str) -> None:
    """Say what there is when the role is not. Of a spec that cannot be read nobody knows the pools."""
    known = (*names.ROLES, *(pool.name for pool in job.spec.pools)) if job.spec else (role,)
    if role not in known:
        raise UserError(f"--role {role}: {job.title} has no such role. It has: {', '.join(known)}")


def pod_of(job: Job, role: str, rank: int) -> str:
    """The pod of a trainer's global rank (by the attempt's members: rank is not ordinal) or of a server's ordinal."""
    if role != names.ROLE_TRAINER or job.spec is None:
        return names.pod(job.name, role, rank)
    trainer = job.spec.trainer
    world = trainer.nodes * trainer.processes_per_node
    if rank >= world:
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
