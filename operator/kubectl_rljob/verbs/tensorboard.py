"""TensorBoard where a job's files are."""

from pathlib import Path

import click

from kubectl_rljob import kubectl
from kubectl_rljob.errors import UserError
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.session import Session
from kubectl_rljob.volume_pod import volume_pod
from rljob_api import names

PORT = 6006
"""Inside the pod."""


@verb()
@job_name
@click.option(
    "--port", type=click.IntRange(1, 65535), default=6006, metavar="PORT", help="of this machine (default: 6006)"
)
def tensorboard(session: Session, name: str, port: int) -> None:
    """Show a job's curves in TensorBoard, in a browser.

    TensorBoard runs in a pod of its own, as `kubectl rljob shell` makes it, on the files under
    spec.checkpoint.path; also after the job has ended. The pod is deleted when this is interrupted. Needs kubectl, and
    the rights to create, exec into, forward ports of and delete pods.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    with volume_pod(cluster, session.terminal, job) as place:
        assert job.spec, "the pod was made of it"
        logs = str(names.tensorboard_dir(Path(job.spec.checkpoint.path)))
        command = ("python", "-m", "tensorboard.main", "--logdir", logs, "--port", str(PORT), "--host", "127.0.0.1")
        with kubectl.serving(session, place, command, ready="http://"):
            session.terminal.tell(f"{job.title}: http://localhost:{port} until you press Ctrl-C")
            problem = kubectl.forward(session, place, port, PORT)
    raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")
