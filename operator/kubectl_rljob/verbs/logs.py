"""The log of one pod, or of a rank in an earlier attempt."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kubectl_rljob import pod_access
from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session, job_name, verb
from kubectl_rljob.pod_access import reading_pod
from rljob_api import names


def _roles(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    known = dict.fromkeys((*names.ROLES, *names.MODEL_ROLES, names.ROLE_WORKER, names.ROLE_GATEWAY))
    return [CompletionItem(role) for role in known if role.startswith(begun)]


@verb()
@job_name
@click.option(
    "--role",
    default=names.ROLE_TRAINER,
    metavar="ROLE",
    shell_complete=_roles,
    help="kind of pod: trainer (the default), rollout, worker, scorer and the place in spec.rewards, gateway, the name of one of spec.pools or, of "
    "models with pods of their own, critic, reference, or reward and the model's place in spec.rewards",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="global rank in the role's gang, or ordinal of a server's pod (default: 0)",
)
@click.option("--pod", metavar="POD", help="name of a pod of that role")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="what a rank wrote in this attempt, from the job's volume",
)
@click.option("-p", "--previous", is_flag=True, help="log of the previous instance of the container")
@click.option("-f", "--follow", is_flag=True, help="stream the log")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="only the last lines")
def logs(
    session: Session,
    name: str,
    role: str,
    rank: int | None,
    pod: str | None,
    attempt: int | None,
    previous: bool,
    follow: bool,
    tail: int | None,
) -> None:
    """Print the log of one pod of a job.

    By default of the trainer pod of rank 0, which prints the steps. On a terminal, control characters are made visible.
    The output of every attempt is kept on the job's volume, under logs/attempt-N of spec.checkpoint.path. --attempt prints
    that of a rank, even when the job has no pods any more. It is read through a running trainer pod, or else through a
    temporary pod like that of `kubectl rljob shell`.
    """
    if rank is not None and pod is not None:
        raise click.UsageError("--rank and --pod exclude each other.")
    if attempt is not None and (pod or previous or follow or not names.is_model_role(role)):
        raise click.UsageError("--attempt is about the ranks of a gang: it goes with --role, --rank and --tail.")
    cluster = session.cluster()
    job = cluster.job(name)
    check_role(job, role)
    if attempt is not None:
        print_attempt(session, cluster, job, attempt, role, rank or 0, tail)
        return
    chosen = pod or pod_of(job, role, rank or 0)
    check_pod(job, role, chosen, cluster.pods(job, role))
    flags = {"previous": previous, "follow": follow}
    query = {"container": names.container(role)} | {key: "true" for key, on in flags.items() if on}
    query |= {} if tail is None else {"tailLines": str(tail)}
    session.terminal.stream(cluster.log(job, chosen, query))


def check_role(job: Job, role: str) -> None:
    """Say what there is when the role is not. Of a spec that cannot be read nobody knows the pools."""
    known = tuple(job.spec.pods) if job.spec else (role,)
    if role not in known:
        raise UserError(f"--role {role}: {job.title} has no such role. It has: {', '.join(known)}")


def print_attempt(
    session: Session, cluster: ClusterClient, job: Job, attempt: int, role: str, rank: int, tail: int | None
) -> None:
    """What the rank of a gang wrote in the attempt. Raises UserError."""
    last = job.status.attempt.number if job.status.attempt else 0
    if attempt > last:
        raise UserError(f"--attempt {attempt}: the last attempt of {job.title} is {last}", job.command("status"))
    file = names.rank_log(Path(job.readable_spec().checkpoint.path), attempt, rank, role)
    command = ["tail", "-n", "+1" if tail is None else str(tail)]
    try:
        with reading_pod(session, cluster, job) as place:
            session.terminal.stream(pod_access.read(session, place, command, file))
    except pod_access.NotThere:
        failed = job.status.last_failure and job.status.last_failure.attempt == attempt
        raise UserError(
            f"--attempt {attempt}: rank {rank} of {job.title} wrote nothing in it: {file} is not there",
            job.command("describe-failure" if failed else "status"),
        ) from None


def pod_of(job: Job, role: str, rank: int) -> str:
    """The pod of a global rank in a gang (by the attempt's members: rank is not ordinal) or of the ordinal of a server's pod."""
    if not names.is_model_role(role) or job.spec is None:
        return names.pod(job.name, role, rank)
    ranks = job.spec.ranks_of(role)
    if rank >= ranks.world:
        raise UserError(f"--rank {rank}: {job.title} has ranks 0 to {ranks.world - 1}")
    node_rank = rank // ranks.processes_per_node
    members = job.status.attempt.of(role) if job.status.attempt else []
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
    number = job.status.attempt.number if job.status.attempt else 0
    kept = names.is_model_role(role) and number
    own = "" if role == names.ROLE_TRAINER else f"--role {role} "
    raise UserError(
        f"{job.title} has no {role} pods (state: {job.status.state})"
        + (". The logs of its attempts are on its volume" if kept else ""),
        job.command("logs", f"{own}--attempt {number}") if kept else job.command("status"),
    )
