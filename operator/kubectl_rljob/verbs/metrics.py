"""Plot a job's metrics, and show what the policy wrote in a step."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from kubectl_rljob import pod_access
from kubectl_rljob.cluster import Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session, job_name, verb
from kubectl_rljob.pod_access import reading_pod
from kubectl_rljob.printers import curves, data
from kubectl_rljob.printers.data import samples_page
from rljob_api import names
from rljob_api.spec import RLJobSpec

ByStep = dict[int, dict[str, float]]


@verb()
@job_name
@click.option(
    "--metric",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="any metric of all steps, for example train/kl, read from the job's volume; may be repeated",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("json", "png")),
    help="print the points, or write an image, instead of plotting on the terminal",
)
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="where `-o png` writes (default: NAME.png)"
)
def metrics(session: Session, name: str, chosen: tuple[str, ...], output: str | None, file: Path | None) -> None:
    """Plot a job's metrics.

    Reward, where the task has one, loss and seconds per step, from the points that its status keeps. With --metric any
    metric of all steps, also after the job has ended: metrics.jsonl under spec.checkpoint.path is read through a
    running trainer pod, or else through a temporary pod like that of `kubectl rljob shell`. `-o png` writes an image
    and needs matplotlib; `-o json` prints the points. `kubectl rljob tensorboard` shows them in a browser.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    if chosen:
        with reading_pod(session, cluster, job) as place:
            steps = by_step(lines_of(session, place, job))
        _show(session, job, of_names(job, steps, chosen), _points(steps, chosen), output, file)
    else:
        history = job.status.progress.history
        _show(session, job, curves.of_history(history), [point.dump() for point in history], output, file)


def lines_of(session: Session, place: Place, job: Job) -> str:
    """Of metrics.jsonl. Raises UserError."""
    assert job.spec, "the pod has its volumes"
    file = names.metrics_file(Path(job.spec.checkpoint.path))
    try:
        return pod_access.read_text(session, place, ("cat",), file)
    except pod_access.NotThere:
        problem = f"{job.title} has not finished a step yet, or its volume was emptied: {file} is not there"
        raise UserError(problem, job.command("status")) from None


def by_step(text: str) -> ByStep:
    """The lines of metrics.jsonl, of which a step may have several. A line that is being written is left out."""
    steps: ByStep = {}
    for line in text.split("\n"):
        try:
            given = json.loads(line)
            steps.setdefault(int(given["step"]), {}).update({k: v for k, v in given.items() if _is_number(v)})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return steps


def of_names(job: Job, steps: ByStep, chosen: Sequence[str]) -> list[curves.Curve]:
    """Raises UserError for a metric that no step has."""
    known = sorted({name for values in steps.values() for name in values} - {"step"})
    for name in chosen:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.5) or known[:8]
            about = f"there is, for example, {', '.join(near)}" if near else "there are none yet"
            raise UserError(f"--metric {name}: {job.title} has no such metric; {about}", job.command("status"))
    return [curves.of_steps(steps, name) for name in chosen]


def _points(steps: ByStep, chosen: Sequence[str]) -> list[dict[str, float]]:
    return [
        {"step": step, **{name: values[name] for name in chosen if name in values}}
        for step, values in sorted(steps.items())
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(
    session: Session,
    job: Job,
    drawn: Sequence[curves.Curve],
    points: Sequence[Mapping[str, object]],
    output: str | None,
    file: Path | None,
) -> None:
    if output == "json":
        session.terminal.data(data.render(points, output))
    elif not points:
        raise UserError(f"{job.title} has not finished a step yet", job.command("status"))
    elif output == "png":
        path = file or Path(f"{job.name}.png")
        curves.image(job.name, drawn, path)
        session.terminal.show(f"{path} written")
    else:
        session.terminal.show(curves.screen(drawn, session.terminal.width))


@verb()
@job_name
@click.option(
    "--step", type=click.IntRange(min=1), metavar="N", help="step to show (default: the last that has samples)"
)
@click.option("--count", type=click.IntRange(min=1), default=4, metavar="N", help="number of samples (default: 4)")
def samples(session: Session, name: str, step: int | None, count: int) -> None:
    """Print a few samples of a step, with who wrote what.

    The policy, with the step of its weights; the prompt; or the environment, such as a tool or a user, whose text
    is not trained on. On a terminal each has a colour. Samples of the last 50 steps are on the job's volume, under
    samples of spec.checkpoint.path. They are read through a running trainer pod, or else through a temporary pod like
    that of `kubectl rljob shell`.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    spec = generating(job)
    with reading_pod(session, cluster, job) as place:
        chosen = existing(session, place, job, spec, step)
        file = names.samples_file(Path(spec.checkpoint.path), chosen)
        text = pod_access.read_text(session, place, ("cat",), file)
    try:
        page = samples_page(chosen, map(json.loads, lines(text)[:count]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file} does not hold samples as this release writes them: {error!r}") from error
    session.terminal.show(page)


def generating(job: Job) -> RLJobSpec:
    """The spec of a job that has samples. Raises UserError."""
    spec = job.readable_spec()
    if spec.supervised:
        raise UserError(f"{job.title} learns from given data (task {spec.task}): its policy generates nothing")
    return spec


def existing(session: Session, place: Place, job: Job, spec: RLJobSpec, step: int | None) -> int:
    """The step, or the last one. Raises UserError when there are no samples of it."""
    try:
        listed = pod_access.read_text(session, place, ("ls",), names.samples_file(Path(spec.checkpoint.path), 1).parent)
    except pod_access.NotThere:
        listed = ""
    steps = sorted(int(number) for number in re.findall(r"^step_(\d+)\.jsonl$", listed, re.MULTILINE))
    if not steps:
        raise UserError(f"{job.title} has no samples yet, or its volume was emptied", job.command("status"))
    if step is not None and step not in steps:
        raise UserError(f"--step {step}: {job.title} has samples of steps {steps[0]} to {steps[-1]}")
    return step or steps[-1]


def lines(text: str) -> list[str]:
    """Of JSON Lines, which end with a newline only: a text may hold U+2028 and others that `splitlines` takes for a line end."""
    return [line for line in text.split("\n") if line]
