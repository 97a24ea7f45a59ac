"""Writes that the API server refuses for a reason that lasts: a quota, a webhook, a namespace that ends. One that would be the same is sent less and
less often, however often the job is reconciled; one that differs is sent at once."""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from rljob_operator.kube.api import ApiError, Key, Object
from rljob_operator.model.children import REFUSALS, ChildProblem, Verb, refusal
from rljob_operator.times import is_ahead

log = logging.getLogger(__name__)

FIRST, LONGEST = 10.0, 60.0
"""Seconds until a refused write is sent again, at least and at most: they double with each refusal in a row."""
MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Write:
    """What is to be done to an object."""

    verb: Verb
    obj: Object
    """With its kind, name and labels."""
    sent: object
    """Equal for writes that would have the same answer."""

    @property
    def target(self) -> tuple[str, str, str]:
        return self.verb, self.obj["kind"], self.obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A write that was refused."""

    problem: ChildProblem
    sent: object
    times: int
    """How often in a row."""
    until: float
    """When it is sent again, in seconds since the epoch."""


class Refusals:
    """By job, what was refused. It may be lost: each write is then sent once more."""

    def __init__(self) -> None:
        self._jobs: dict[Key, dict[tuple[str, str, str], Refused]] = {}

    async def attempt(
        self, job: Key, write: Write, now: float, send: Callable[[], Awaitable[ChildProblem | None]]
    ) -> ChildProblem | None:
        """Sends the write, unless the same was refused a moment ago. Returns why it could not be done. Raises ApiError for what may pass."""
        of_job = self._jobs.setdefault(job, {})
        known = of_job.pop(write.target, None)
        if known and known.sent == write.sent and is_ahead(known.until, LONGEST, now):
            of_job[write.target] = known
            return known.problem
        try:
            problem = await send()
        except ApiError as error:
            if error.code not in REFUSALS:
                raise
            problem = refusal(write.verb, write.obj, error)
        if problem:
            log.warning("%s/%s: %s", *job, problem.message)
            times = known.times + 1 if known else 1
            wait = min(LONGEST, FIRST * 2 ** min(times - 1, MOST_DOUBLINGS))
            of_job[write.target] = Refused(problem, write.sent, times, now + wait)
        return problem

    def due(self, job: Key, problems: Collection[ChildProblem], now: float) -> float | None:
        """Seconds until the first of these problems is tried again; None: there are none. Other refusals are of writes that are wanted no more, and
        are forgotten."""
        kept = {target: one for target, one in self._jobs.pop(job, {}).items() if one.problem in problems}
        if kept:
            self._jobs[job] = kept
        return min((max(0.0, one.until - now) for one in kept.values()), default=None)

    def forget(self, job: Key) -> None:
        self._jobs.pop(job, None)
