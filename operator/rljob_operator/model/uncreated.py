"""Why pods of a StatefulSet do not exist: a quota, a LimitRange, a PriorityClass that does not exist, an admission webhook. The controller of the
StatefulSet says so in events only, which are read when pods have been missing for some time."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api import names
from rljob_api.text import one_line
from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Api, ApiError, Key, Object

log = logging.getLogger(__name__)

PATIENCE, INTERVAL = 5.0, 30.0
"""Seconds for which pods may be missing before anybody asks why, and between two questions."""
LONGEST = 500
"""Characters of a reason."""


@dataclass(slots=True)
class Missing:
    """A job that lacks pods."""

    due: float
    """When to ask, in seconds since the epoch."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By role."""


class UncreatedPods:
    """Asks for the events of StatefulSets whose pods are missing."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._missing: dict[Key, Missing] = {}

    async def reasons(
        self, job: Key, sets: Iterable[Mapping[str, Any]], pods: Iterable[Pod], now: float
    ) -> dict[str, str]:
        """Why pods of the job's StatefulSets do not exist, by role, as far as that is known."""
        there = [pod.role for pod in pods]
        short = [one for one in sets if there.count(_role(one)) < one["spec"]["replicas"]]
        if not short:
            self.forget(job)
            return {}
        found = self._missing.setdefault(job, Missing(now + PATIENCE))
        if not now < found.due <= now + INTERVAL:  # one that is later was set before the clock was set back
            found.due = now + INTERVAL
            found.reasons = {_role(one): why for one in short if (why := await self._reason(one))}
        return found.reasons

    def due(self, job: Key) -> float | None:
        """When to ask for the job's pods, in seconds since the epoch; None: all exist."""
        found = self._missing.get(job)
        return found.due if found else None

    def forget(self, job: Key) -> None:
        self._missing.pop(job, None)

    async def _reason(self, stateful_set: Mapping[str, Any]) -> str:
        """The newest reason; empty: there is none, or it cannot be read, which is no reason to stop."""
        meta = stateful_set["metadata"]
        fields = f"involvedObject.uid={meta['uid']},reason=FailedCreate"
        try:
            pages = [page async for page in self._api.pages("Event", meta["namespace"], fields=fields)]
        except ApiError as error:
            log.warning("events of StatefulSet %s/%s: %s", meta["namespace"], meta["name"], error)
            return ""
        events = [event for page in pages for event in page.objects]
        newest = max(events, key=_time, default={})
        said = one_line(str(newest.get("message") or ""))
        return said.rpartition("failed error: ")[2][:LONGEST]


def _role(stateful_set: Mapping[str, Any]) -> str:
    return str((stateful_set["metadata"].get("labels") or {}).get(names.LABEL_ROLE, ""))


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
