"""Since when the nodes of deleted pods have had time to end them.

A node that was lost and is back gets the whole time again. One that falls silent for moments, again and again, does not: a pod on it would never
count as stuck. So what counts is when the node first answered after the deletion or after it was lost, and not when it became Ready last.

It is empty after a restart of the operator, which gives nodes more time, and nothing else.
"""

from collections.abc import Iterable
from dataclasses import replace

from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Key

Deletion = tuple[str, float | None]
"""A pod's uid, and when its grace period ends: later, or earlier, if somebody deletes it once more."""


class DeletedPods:
    """By job, its deleted pods, with since when their nodes answer, in seconds since the epoch."""

    def __init__(self) -> None:
        self._jobs: dict[Key, dict[Deletion, float]] = {}

    def observe(self, job: Key, pods: Iterable[Pod], node_loss_seconds: float, now: float) -> tuple[Pod, ...]:
        """All pods of the job as their nodes show them now, with what is remembered of their nodes. Pods that are not among them are forgotten."""
        pods, before = tuple(pods), self._jobs.pop(job, {})
        since = {}
        for pod in pods:
            at = _answers_since(pod, before.get(_deletion(pod)), node_loss_seconds, now) if pod.deleting else None
            if at is not None:
                since[_deletion(pod)] = at
        if since:
            self._jobs[job] = since
        return tuple(self.remembered(job, pod) for pod in pods)

    def remembered(self, job: Key, pod: Pod) -> Pod:
        """A pod as its node shows it, with what is remembered of its node."""
        known = self._jobs.get(job, {})
        return replace(pod, answers_since=known[_deletion(pod)]) if pod.deleting and _deletion(pod) in known else pod

    def forget(self, job: Key) -> None:
        self._jobs.pop(job, None)

    def clear(self) -> None:
        self._jobs.clear()


def _deletion(pod: Pod) -> Deletion:
    return pod.uid, pod.delete_by


def _answers_since(pod: Pod, known: float | None, node_loss_seconds: float, now: float) -> float | None:
    """None: the node is lost, or has not been seen to answer."""
    if pod.lost_since is None:
        return pod.answers_since if known is None else known
    return None if now - pod.lost_since >= node_loss_seconds else known
