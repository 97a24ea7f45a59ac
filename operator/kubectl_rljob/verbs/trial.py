"""Try what a user writes - data, rewards, agent - where a job would find it, before there is one."""

import json
import sys
from collections.abc import Sequence

import click

from kubectl_rljob import inputs, options, pod_access
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.options import Session, verb
from kubectl_rljob.pod_access import temporary, trying
from rljob_api import names
from rljob_api.manifest import Manifest
from rljob_api.policy import JobPolicy
from rljob_api.rules.engine import lines
from rljob_api.spec import RLJobSpec


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
    spec = _admitted(given, policy)
    head = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": given.name, "namespace": namespace},
    }
    job = Job(head | {"spec": spec.dump()})
    with temporary(session, cluster, namespace, trying(job, spec)) as place:
        code = pod_access.feed(session, place, _command(rows, everything, responses), json.dumps(job.raw))
    if code:
        raise click.exceptions.Exit(code)


def _admitted(given: Manifest, policy: JobPolicy) -> RLJobSpec:
    """With the defaults of the cluster. Raises UserError with all broken rules."""
    result = policy.admit(given.spec, given.name).result
    violations = (*given.problems, *result.violations)
    if violations or result.spec is None:
        raise UserError(f"{given.name} is not valid:\n{lines(violations)}")
    return result.spec


def _command(rows: int, everything: bool, responses: Sequence[str]) -> list[str]:
    """What the pod runs, with the manifest on its standard input."""
    shown = ["--rows", str(rows), "--color", "always" if sys.stdout.isatty() else "never"]
    said = [f"--response={text}" for text in responses]
    return ["python", "-m", "rljob_trainer", "try", "/dev/stdin", *shown, *said, *(["--all"] if everything else [])]
