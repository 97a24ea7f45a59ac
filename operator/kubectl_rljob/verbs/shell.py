"""A shell where a job's files are."""

import click

from kubectl_rljob import kubectl
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.session import Session
from kubectl_rljob.volume_pod import volume_pod


@verb()
@job_name
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", help="what to run (default: bash)"
)
def shell(session: Session, name: str, command: tuple[str, ...]) -> None:
    """Open a shell on a job's volumes.

    In a pod of its own, with the image, the volumes and the user of the job's trainers, without GPUs; also after the
    job has ended. The pod is deleted when the shell ends, and ends after 8 hours. With a command after --
    it runs that, and ends with its exit code. Needs kubectl, and the rights to create, exec into and delete pods.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    with volume_pod(cluster, session.terminal, job) as place:
        code = kubectl.interact(session, place, command or ("bash",))
    if code:
        raise click.exceptions.Exit(code)
