"""The screen of `describe-failure`."""

from collections.abc import Callable
from datetime import datetime

from kubectl_rljob.job import Job
from kubectl_rljob.printers.text import age
from rljob_api import reasons
from rljob_api.protocol import Failure
from rljob_api.status import LastFailure


def screen(job: Job, last: LastFailure, now: datetime, here: Callable[[str], str]) -> str:
    """`here` makes a command one for the job's cluster."""
    ago = f", {age(last.time, now)} ago" if last.time else ""
    lines = [
        f"Attempt:   {last.attempt}{ago}",
        f"Reason:    {last.reason}: {reasons.MEANING.get(last.reason, 'unknown to this version of the plugin')}",
        f"Cost:      {_cost(job, last)}",
        f"Where:     {where(last) or 'unknown'}",
    ]
    lines += ["", *_cause(last.failure)] if last.failure else []
    return "\n".join([*lines, "", "Next:", *(f"  {here(command)}" for command in _next(job, last))])


def _cost(job: Job, last: LastFailure) -> str:
    if last.reason == reasons.CONFIGURATION_ERROR:
        return "the job: no restart can help"
    if last.reason in reasons.NOT_COUNTED:
        return "a restart that does not count"
    limit = f" of {job.spec.lifecycle.max_restarts}" if job.spec else ""
    return f"a restart that counts: {job.status.restarts.counted}{limit} in a row"


def where(last: LastFailure) -> str:
    """`rank 3 of run-trainer-0`, as far as it is known."""
    rank = f"rank {last.failure.rank}" if last.failure and last.failure.rank is not None else ""
    return " of ".join(part for part in (rank, last.pod) if part)


def _cause(failure: Failure) -> list[str]:
    """Whole: exception, message, and the end of the traceback as it was reported."""
    head = ": ".join(part for part in (failure.exception, failure.message) if part)
    return ["Cause:", *(f"  {text}" for text in head.split("\n")), *(f"    {text}" for text in failure.lines)]


def _next(job: Job, last: LastFailure) -> list[str]:
    if last.failure and last.failure.field:
        return [f"kubectl explain rljob.{_explained(last.failure.field)}", *_mend(job)]
    root = job.spec.checkpoint.path if job.spec else "spec.checkpoint.path"
    commands = [f"ls {root}/logs/attempt-{last.attempt}   (on the job's volume)"]
    if last.reason == reasons.CONTAINER_RESTARTED and last.pod:
        commands.insert(0, f"kubectl describe pod {last.pod} -n {job.namespace}")
    if job.status.outcome:
        commands.append(job.command("resume", "--from-step N"))
    return commands


def _mend(job: Job) -> list[str]:
    """A changed spec alone does not open a job again that has ended."""
    edit = f"kubectl edit rljob {job.name} -n {job.namespace}"
    if not job.status.outcome:
        return [edit]
    if kept := job.status.checkpoint.kept:
        return [edit, job.command("resume", f"--from-step {kept[-1].step}")]
    again = f"kubectl delete rljob {job.name} -n {job.namespace}"
    return ["correct the manifest; without a checkpoint the job begins anew:", again, "kubectl apply -f FILE"]


def _explained(field: str) -> str:
    """`spec.rewards[0].python` as `kubectl explain` wants it."""
    return "".join(part.split("]")[-1] for part in field.split("["))
