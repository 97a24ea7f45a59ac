"""Pods that have failed, also after they are gone: a StatefulSet replaces a failed pod within milliseconds, and its last state goes with it.

What is remembered explains failures and delays the next try. It is empty after a restart of the operator, so nothing correct depends on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Key

FORGIVEN = 1200.0
"""Seconds after which a further failure of a pod counts as the first one again."""


@dataclass(frozen=True, slots=True)
class FailedPod:
    """A pod that its kubelet failed, or that was disrupted."""

    pod: Pod
    """Its last state: uid, node, and why (`failed`, `disrupted`)."""
    at: float
    """When it was seen to have failed, in seconds since the epoch, by our clock."""
    times: int
    """Failures in a row of pods of this name, this one included. Disruptions do not count."""


class FailedPods:
    """The last failed pod of each name, by job. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[Key, dict[str, FailedPod]] = {}

    def note(self, job: Key, pod: Pod) -> None:
        """Takes a pod as the watch shows it."""
        if not (pod.failed or pod.disrupted):
            return
        now, last = self._clock(), self._jobs.get(job, {}).get(pod.name)
        times = int(bool(pod.failed and not pod.disrupted))
        if last and last.pod.uid == pod.uid:
            now, times = last.at, max(last.times, times)
        elif last and now - last.at < FORGIVEN:
            times += last.times
        self._jobs.setdefault(job, {})[pod.name] = FailedPod(pod, now, times)

    def of(self, job: Key) -> Mapping[str, FailedPod]:
        """By the pod's name."""
        return dict(self._jobs.get(job, {}))

    def forget(self, job: Key) -> None:
        self._jobs.pop(job, None)
