"""Verbs that run a program where a job's files are: a shell, TensorBoard, the page of a run, or the export of a checkpoint as a model."""

import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import click

from kubectl_rljob import pod_access
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session, job_name, verb
from kubectl_rljob.pod_access import volume_pod
from rljob_api import names
from rljob_api.spec import RLJobSpec


@verb()
@job_name
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", help="command to run (default: bash)"
)
def shell(session: Session, name: str, command: tuple[str, ...]) -> None:
    """Open a shell on a job's volumes.

    Creates a temporary pod with the image, volumes and user of the job's trainers, without GPUs; also after the job has
    ended. The pod is deleted when the shell exits, and stops after 8 hours at the latest. A command after -- runs
    instead of the shell, and its exit code is returned. Needs kubectl, and the rights to create, exec into and delete
    pods.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    with volume_pod(session, cluster, job) as place:
        code = pod_access.interact(session, place, command or ("bash",))
    if code:
        raise click.exceptions.Exit(code)


@verb("export")
@job_name
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="step of the checkpoint (default: the newest)")
@click.option("--out", metavar="DIR", help="new directory on a volume of the job (default: exports/step_N of the run)")
def export(session: Session, name: str, step: int | None, out: str | None) -> None:
    """Write a checkpoint as a Hugging Face model.

    Writes to the job's volume, on the CPU of a temporary pod like that of `kubectl rljob shell`, whose memory has to
    hold the model; also while the job runs. A job exports its last policy itself (checkpoint.exportHuggingFace).
    `kubectl rljob checkpoints` lists the steps.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    spec = exportable(job)
    chosen = existing(job, step)
    require_lasting(spec, out)
    with volume_pod(session, cluster, job) as place:
        code = pod_access.interact(session, place, export_command(spec, chosen, out))
    if code:
        raise click.exceptions.Exit(code)


def exportable(job: Job) -> RLJobSpec:
    """The spec of a job whose checkpoints hold a whole language model. Raises UserError."""
    spec = job.readable_spec()
    if spec.model.lora or spec.task == "rewardModel":
        kind = "adapters" if spec.model.lora else "a reward model"
        raise UserError(f"{job.title} trains {kind}, which only the job itself exports, at its end")
    return spec


def existing(job: Job, step: int | None) -> int:
    """The step, or the last one that has a checkpoint. Raises UserError when there is none."""
    steps = [checkpoint.step for checkpoint in job.status.checkpoint.kept]
    if not steps:
        raise UserError(f"{job.title} has no complete checkpoint yet", job.command("status"))
    if step is not None and step not in steps:
        raise UserError(f"--step {step}: {job.title} has checkpoints of steps {', '.join(map(str, steps))}")
    return step or steps[-1]


def require_lasting(spec: RLJobSpec, out: str | None) -> None:
    """Raises UserError for a directory that is gone with the pod. All others are on volumes, or cannot be written."""
    path = PurePosixPath(posixpath.normpath(out or spec.checkpoint.path))
    if path.is_absolute() and not path.is_relative_to("/tmp"):
        return
    gone = "is deleted with the pod that writes it; name a directory on a volume"
    if out is None:
        raise UserError(f"spec.checkpoint.path = {spec.checkpoint.path}: {gone} with --out")
    raise UserError(f"--out {out}: {gone}, for example {PurePosixPath(spec.checkpoint.path).parent / path.name}")


def export_command(spec: RLJobSpec, step: int, out: str | None) -> tuple[str, ...]:
    """What the pod runs."""
    root = Path(spec.checkpoint.path)
    model = ("--model", spec.model.path, "--dtype", spec.model.dtype)
    target = out or str(names.export_dir(root, step))
    return ("python", "-m", "rljob_trainer", "export", *model, str(names.step_dir(root, step)), target)


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
    server = ("python", "-m", "tensorboard.main", "--port", str(PORT), "--host", "127.0.0.1", "--logdir")
    _serve(session, name, lambda root: (*server, str(names.tensorboard_dir(root))), port, PORT)


@verb("view")
@job_name
@click.option("--compare", metavar="DIR", help="checkpoint path of another run on a volume of the job, next to it")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=names.VIEW_PORT,
    metavar="PORT",
    help=f"local port (default: {names.VIEW_PORT})",
)
def view(session: Session, name: str, compare: str | None, port: int) -> None:
    """Show a job's curves and samples, turn by turn, in a browser on this machine.

    The page is served by a temporary pod like that of `kubectl rljob shell`, from the files under spec.checkpoint.path,
    also after the job has ended. It changes nothing and loads nothing from elsewhere. Ctrl-C deletes the pod. Needs
    kubectl, and the rights to create, exec into, forward ports of and delete pods.
    """
    server = ("python", "-m", "rljob_trainer", "view", "--port", str(names.VIEW_PORT))
    other = ("--compare", compare) if compare else ()
    _serve(session, name, lambda root: (*server, *other, str(root)), port, names.VIEW_PORT)


def _serve(session: Session, name: str, command: Callable[[Path], Sequence[str]], here: int, there: int) -> None:
    """Run a server on a job's volumes, given their checkpoint path, and forward its port until the user ends it. Raises UserError."""
    cluster = session.cluster()
    job = cluster.job(name)
    with volume_pod(session, cluster, job) as place:
        assert job.spec, "the pod was made of it"
        with pod_access.serving(session, place, command(Path(job.spec.checkpoint.path)), ready="http://"):
            session.terminal.tell(f"{job.title}: http://localhost:{here} until you press Ctrl-C")
            problem = pod_access.forward(session, place, here, there)
    raise UserError(f"pod {place.pod} in namespace {place.namespace}: {problem}")
