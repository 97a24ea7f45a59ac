"""A job's curves."""

from pathlib import Path

import click

from kubectl_rljob.errors import UserError
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.printers import curves, data
from kubectl_rljob.session import Session


@verb()
@job_name
@click.option(
    "-o", "--output", type=click.Choice(("json", "png")), help="points, or an image, instead of a terminal's curves"
)
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="where `-o png` writes (default: NAME.png)"
)
def metrics(session: Session, name: str, output: str | None, file: Path | None) -> None:
    """Draw a job's curves.

    Reward, where the task has one, loss and seconds per step, from the points that its status keeps. `-o png` writes an image and needs
    matplotlib; `-o json` prints the points. All metrics of all steps are in metrics.jsonl and TensorBoard files
    under spec.checkpoint.path.
    """
    job = session.job(name)
    history = job.status.progress.history
    if output == "json":
        session.terminal.data(data.render([point.dump() for point in history], output))
    elif not history:
        raise UserError(f"{job.title} has not finished a step yet", job.command("status"))
    elif output == "png":
        path = file or Path(f"{job.name}.png")
        curves.image(job.name, history, path)
        session.terminal.show(f"{path} written")
    else:
        session.terminal.show(curves.screen(history, session.terminal.width))
