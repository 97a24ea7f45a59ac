"""What the policy wrote in a step."""

import json
import re
from pathlib import Path

import click

from kubectl_rljob import kubectl
from kubectl_rljob.cluster import Place
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.printers.samples import samples_page
from kubectl_rljob.session import Session
from kubectl_rljob.volume_pod import reading_pod
from rljob_api import names
from rljob_api.spec import RLJobSpec


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
        text = kubectl.read_text(session, place, ("cat",), file)
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
        listed = kubectl.read_text(session, place, ("ls",), names.samples_file(Path(spec.checkpoint.path), 1).parent)
    except kubectl.NotThere:
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
