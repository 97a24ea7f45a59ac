"""The screen of `describe-failure`."""

import re
from collections.abc import Callable
from datetime import datetime
from shlex import quote

from kubectl_rljob.job import Job
from kubectl_rljob.printers.text import age, one_line
from rljob_api import names, reasons
from rljob_api.protocol import Failure
from rljob_api.status import LastFailure

FIELD = re.compile(r"spec(\.\w+(\[\d+\])?)+", re.ASCII)
"""What can be asked of `kubectl explain`."""


def screen(job: Job, last: LastFailure, now: datetime, here: Callable[[str], str]) -> str:
    """`here` makes a command one for the job's cluster."""
    ago = f", {age(last.time, now)} ago" if last.time else ""
    lines = [
        f"Attempt:   {last.attempt}{ago}",
        f"Reason:    {one_line(last.reason)}: {reasons.MEANING.get(last.reason, 'unknown to this version of the plugin')}",
        f"Cost:      {_cost(job, last)}",
        f"Where:     {where(last) or 'unknown'}",
    ]
    lines += ["", *_cause(last, last.failure)] if last.failure else []
    return "\n".join([*lines, "", "Next:", *(f"  {command}" for command in _next(job, last, here))])


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
    return one_line(" of ".join(part for part in (rank, last.pod) if part))


def said(last: LastFailure, failure: Failure) -> tuple[str, ...]:
    """Exception and message, as far as they say more than the reason."""
    exception = "" if failure.exception == last.reason else failure.exception
    return tuple(part for part in (exception, failure.message) if part)


def _cause(last: LastFailure, failure: Failure) -> list[str]:
    """Whole: exception, message, and the end of the traceback as it was reported."""
    head = ": ".join(said(last, failure))
    traceback = [text for line in failure.lines for text in line.split("\n")]
    return ["Cause:", *(f"  {text}" for text in head.split("\n")), *(f"    {text}" for text in traceback)]


def _next(job: Job, last: LastFailure, here: Callable[[str], str]) -> list[str]:
    field = last.failure.field if last.failure else ""
    if FIELD.fullmatch(field or ""):
        explain = f"kubectl explain rljob.{_explained(field)}"
        return [here(explain), *_fix(job, here, trusted=not field.startswith("spec.checkpoint"))]
    rank = last.failure.rank if last.failure else None
    role = names.role_of(job.name, last.pod) if last.pod else names.ROLE_TRAINER
    whose = f"--role {role} " if role != names.ROLE_TRAINER and names.is_model_role(role) else ""
    commands = [job.command("logs", f"{whose}--attempt {last.attempt}" + (f" --rank {rank}" if rank else ""))]
    if last.reason in reasons.CONTAINER_ENDED and last.pod:
        commands.insert(0, f"kubectl describe pod {quote(last.pod)} -n {job.namespace}")
    commands = [here(command) for command in commands]
    return [*commands, _resume(job, here, trusted=not field)] if job.status.outcome else commands


def _fix(job: Job, here: Callable[[str], str], trusted: bool) -> list[str]:
    """A changed spec alone does not open a job again that has ended."""
    edit = here(f"kubectl edit rljob {job.name} -n {job.namespace}")
    return [edit, _resume(job, here, trusted)] if job.status.outcome else [edit]


def _resume(job: Job, here: Callable[[str], str], trusted: bool) -> str:
    """From the newest checkpoint, or from the initial weights. Not `trusted`: the failure is about the checkpoints themselves, whose list was
    made before it; the cause names those that are usable."""
    if not trusted:
        command = here(job.command("resume", "--from-step N"))
        return f"{command}   (N: a step that the cause names, or 0 for the initial weights)"
    kept = job.status.checkpoint.kept
    return here(job.command("resume", f"--from-step {kept[-1].step if kept else 0}"))


def _explained(field: str) -> str:
    """`spec.rewards[0].python` as `kubectl explain` wants it."""
    return "".join(part.split("]")[-1] for part in field.split("["))
