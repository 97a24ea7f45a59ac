"""Credentials that pods get when they start, and only then: the token of the rollout servers, and that of their ServiceAccount.

The operator may not read Secrets. A kubelet says when one is missing, and the trainer when its value has changed.
"""

from rljob_api import names, reasons
from rljob_api.status import JobStatus
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.attempt import give_command
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.progress import current_progress


def replace_token(s: Snapshot, status: JobStatus) -> Change:
    """Replaces the Secret of all pods. They hold the old value until they are replaced, so an open attempt is drained."""
    trouble = _missing(s, status) or _refused(s, status)
    if not trouble:
        return Change(status)
    status = set_(status, token=status.token + 1)
    attempt = status.attempt
    if attempt and is_open(attempt) and attempt.command == "run":
        status = set_(status, attempt=give_command(attempt, "drain", reasons.TOKEN_REPLACED, s.now))
    return Change(status, (Event("Warning", reasons.TOKEN_REPLACED, f"{trouble}; all pods get a new token"),))


def replace_account(s: Snapshot, status: JobStatus) -> Change:
    """Deletes pods that are older than their ServiceAccount: the API server refuses their tokens, so they get no command and write no report."""
    stale = tuple(pod for pod in s.pods if s.has_lost_account(pod) and not pod.deleting)
    if not stale:
        return Change(status)
    attempt = status.attempt
    if attempt and is_open(attempt) and attempt.command != "stop":
        status = set_(status, attempt=give_command(attempt, "stop", reasons.ACCOUNT_REPLACED, s.now))
    text = "the ServiceAccount was deleted and made again, and the API server refuses the tokens of older pods"
    deleted = f"{', '.join(pod.name for pod in stale)}: deleted, since {text}"
    return Change(status, (Event("Warning", reasons.ACCOUNT_REPLACED, deleted),), delete=stale)


def _missing(s: Snapshot, status: JobStatus) -> str:
    """A pod that cannot start without the Secret, by the kubelet's message; empty: there is none."""
    secret = names.token(s.job.name, s.job.uid, status.token)
    waiting = (p for p in s.pods if not p.deleting and f'secret "{secret}" not found' in p.waiting)
    return next((f"pod {p.name} finds no Secret {secret}" for p in waiting), "")


def _refused(s: Snapshot, status: JobStatus) -> str:
    """A server that refuses the trainer's token; empty: there is none."""
    attempt = status.attempt
    progress = current_progress(s, attempt) if attempt and is_open(attempt) and attempt.command == "run" else None
    if progress is None:
        return ""
    refusing = {*progress.unauthorized, *(r.pod for r in progress.rollouts if r.unauthorized)}
    return next((f"{p.name} refuses the trainer's token (401)" for p in s.servers if p.name in refusing), "")
