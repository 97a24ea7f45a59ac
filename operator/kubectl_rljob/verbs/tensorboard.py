"""Serve a job's metrics in TensorBoard."""

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
@click.option("--port", type=click.IntRange(1, 65535), default=6006, metavar="PORT", help="local port (default: 6006)")
def tensorboard(session: Session, name: str, port: int) -> None:
    """Serve a job's metrics in TensorBoard, for a browser on this machine.

    TensorBoard runs in a temporary pod like that of `kubectl rljob shell`, on the files under spec.checkpoint.path,
    also after the job has ended. Ctrl-C deletes the pod. Needs kubectl, and the rights to create, exec into, forward
    ports of and delete pods.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    with volume_pod(session, cluster, job) as place:
        assert job.spec, "the pod was made of it"
        logs = str(names.tensorboard_dir(Path(job.spec.checkpoint.path)))
        command = ("python", "-m", "tensorboard.main", "--logdir", logs, "--port", str(PORT), "--host", "127.0.0.1")
        with kubectl.serving(session, place, command, ready="http://"):
            session.terminal.tell(f"{job.title}: http://localhost:{port} until you press Ctrl-C")
            problem = kubectl.forward(session, place, port, PORT)
    raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")
