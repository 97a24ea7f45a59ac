"""Try what a user writes - data, rewards, agent - where a job would find it, before there is one."""

import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from kubectl_rljob import inputs, options, pod_access
from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import REFUSED, UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session, verb
from kubectl_rljob.pod_access import temporary, trying
from rljob_api import names
from rljob_api.base import Undecidable, undecidable
from rljob_api.policy import JobPolicy
from rljob_api.rules import Violation, readable, validate
from rljob_api.rules.engine import lines


@verb("try")
@options.filename("manifest with one RLJob; - reads standard input")
@options.settings("set a field of the spec, as a YAML value, for example `data.maxPromptTokens=512`; may be repeated")
@click.option(
    "--rows", type=click.IntRange(min=0), default=2, metavar="N", help="rows to show of each file (default: 2)"
)
@click.option("--all", "everything", is_flag=True, help="read every row, not only the first ones of each file")
@click.option(
    "--response",
    "responses",
    multiple=True,
    metavar="TEXT",
    help="what a policy that is right says, with {answer} for the row's answer; repeated, one turn after another of an agent's",
)
@options.operator_namespace
def try_(
    session: Session,
    filename: str,
    settings: tuple[str, ...],
    rows: int,
    everything: bool,
    responses: tuple[str, ...],
    operator_namespace: str,
) -> None:
    """Show what a job's data, rewards and agent do, without its model.

    Runs `python -m rljob_trainer try` in a temporary pod with the image and volumes of the job, which need not be
    created: prompts with their tokens, the reward of a right and of wrong responses, the agent with a scripted policy,
    and what supervised tasks learn from. Every mistake is named with its file and line; exit code 1 if there is one.
    Of a manifest that breaks rules, the pod only says which files are missing.
    Needs kubectl, and the rights to create, exec into and delete pods.
    """
    (given, *others) = inputs.read(filename, settings)
    if others:
        raise UserError(f"{filename}: holds {1 + len(others)} jobs: keep one in a file")
    cluster = session.cluster()
    namespace = given.namespace or cluster.namespace
    policy, unread = session.job_policy(operator_namespace)
    if unread:
        session.terminal.tell(f"note: without the cluster's defaults and limits, which were {unread}")
    command = _command(rows, everything, responses)
    result = policy.admit(given.spec, given.name).result
    broken = (*given.problems, *result.violations)
    if broken or result.spec is None:
        completed = policy.defaults.completed(given.spec).value
        _refuse(session, cluster, _job(given.name, namespace, completed), policy, broken, command)
    job = _job(given.name, namespace, result.spec.dump())
    with temporary(session, cluster, namespace, trying(job, result.spec)) as place:
        code = pod_access.feed(session, place, command, json.dumps(job.raw))
    if code:
        raise click.exceptions.Exit(code)


def _job(name: str, namespace: str, spec: dict[str, Any]) -> Job:
    metadata = {"name": name, "namespace": namespace}
    return Job({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec})


def _refuse(
    session: Session,
    cluster: ClusterClient,
    job: Job,
    policy: JobPolicy,
    broken: Sequence[Violation],
    command: list[str],
) -> NoReturn:
    """Say which rules are broken, at once, and then what only a pod can see: which files are missing, and what the model does not allow."""
    wrong = f"{job.name} is not valid:\n{lines(broken)}"
    body = _pod_of(job, policy)
    if body is None:
        raise UserError(wrong)
    session.terminal.tell(f"error: {wrong}")
    known = {*wrong.splitlines(), *map(str, validate(job.raw["spec"], job.name).violations)}
    try:
        with temporary(session, cluster, job.namespace, body) as place:
            said = pod_access.complaints(session, place, command, json.dumps(job.raw))
    except UserError as error:
        said = [f"note: its files were not looked for: {error}"]
    for line in said:
        if line not in known:
            session.terminal.tell(line)
    raise click.exceptions.Exit(REFUSED)


def _pod_of(job: Job, policy: JobPolicy) -> dict[str, Any] | None:
    """The pod for a job whose spec is broken. None: what the pod is made of is missing or cannot be read."""
    spec = readable(job.raw["spec"])
    try:
        body = trying(job, policy.completed(spec)) if spec else None
        json.dumps(body, default=undecidable)
    except (Undecidable, UserError):
        return None
    return body


def _command(rows: int, everything: bool, responses: Sequence[str]) -> list[str]:
    """What the pod runs, with the manifest on its standard input."""
    shown = ["--rows", str(rows), "--color", "always" if sys.stdout.isatty() else "never"]
    said = [f"--response={text}" for text in responses]
    return ["python", "-m", "rljob_trainer", "try", "/dev/stdin", *shown, *said, *(["--all"] if everything else [])]
