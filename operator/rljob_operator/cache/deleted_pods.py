"""Since when the nodes of deleted pods have had time to end them.

A node that was lost and is back gets the whole time again. One that falls silent for moments, again and again, does not: a pod on it would never
count as stuck. So what counts is when the node first answered after the deletion or after it was lost, and not when it became Ready last.

A node may have been lost and come back while nobody looked, for example while the API server did not answer. One that became Ready again so long
after the last look that it may have been lost in between gets the whole time again, too.

It is empty after a restart of the operator, which gives nodes more time, and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Key

Deletion = tuple[str, float | None]
"""A pod's uid, and when its grace period ends: later, or earlier, if somebody deletes it once more."""


@dataclass(frozen=True, slots=True)
class Answering:
    """A node of a deleted pod, in seconds since the epoch."""

    since: float
    """Since when it answers, short silences left aside."""
    seen: float
    """When it was looked at last."""


class DeletedPods:
    """By job, its deleted pods, with since when their nodes answer."""

    def __init__(self) -> None:
        self._jobs: dict[Key, dict[Deletion, Answering]] = {}

    def observe(self, job: Key, pods: Iterable[Pod], node_loss_seconds: float, now: float) -> tuple[Pod, ...]:
        """All pods of the job as their nodes show them now, with what is remembered of their nodes. Pods that are not among them are forgotten."""
        pods, before = tuple(pods), self._jobs.pop(job, {})
        nodes = {}
        for pod in pods:
            node = _answering(pod, before.get(_deletion(pod)), node_loss_seconds, now) if pod.deleting else None
            if node is not None:
                nodes[_deletion(pod)] = node
        if nodes:
            self._jobs[job] = nodes
        return tuple(self.remembered(job, pod) for pod in pods)

    def remembered(self, job: Key, pod: Pod) -> Pod:
        """A pod as its node shows it, with what is remembered of its node."""
        known = self._jobs.get(job, {}).get(_deletion(pod)) if pod.deleting else None
        return replace(pod, answers_since=known.since) if known else pod

    def forget(self, job: Key) -> None:
        self._jobs.pop(job, None)

    def clear(self) -> None:
        self._jobs.clear()


def _deletion(pod: Pod) -> Deletion:
    return pod.uid, pod.delete_by


def _answering(pod: Pod, known: Answering | None, node_loss_seconds: float, now: float) -> Answering | None:
    """None: the node is lost, or has not been seen to answer."""
    if pod.lost_since is not None:
        lost = now - pod.lost_since >= node_loss_seconds
        return replace(known, seen=now) if known and not lost else None
    may_have_been_lost = known is not None and pod.answers_since - known.seen >= node_loss_seconds
    return Answering(pod.answers_since if known is None or may_have_been_lost else known.since, now)
