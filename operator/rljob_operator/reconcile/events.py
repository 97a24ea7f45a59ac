"""Kubernetes events about jobs, with the budget of client-go's recorder (EventCorrelator): events that repeat are counted, events that are alike are
combined, and a token bucket bounds the rest, whatever a job's pods report."""

import logging
import socket
import uuid
from dataclasses import dataclass, field

from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import Api, ApiError, Conflict, Key, NotFound, Object
from rljob_operator.policies.decide import Event
from rljob_operator.times import stamp

log = logging.getLogger(__name__)

BURST, REFILL = 25, 300.0
"""Events of a job that may be written at once, besides the first of each reason; seconds after which it may have one more."""
SIMILAR, WINDOW = 10, 600.0
"""Messages of one type and reason that are written as events of their own within so many seconds; further ones become one event."""
COMBINED = "(combined from similar events): "


@dataclass(slots=True)
class Budget:
    """The recent events of one job."""

    tokens: float
    at: float
    """When the tokens were counted, in seconds since the epoch."""
    recent: dict[tuple[str, str], dict[str, Object]] = field(default_factory=dict)
    """Written events, by type and reason, and then by message; that of all combined ones is COMBINED."""

    def takes(self, now: float) -> bool:
        """Takes a token, if there is one."""
        self.tokens = min(BURST, self.tokens + max(0.0, now - self.at) / REFILL)
        self.at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def alike(self, event: Event, now: float) -> dict[str, Object]:
        """The events of this type and reason that have been written within the window."""
        oldest, newest = stamp(now - WINDOW), stamp(now)
        known = self.recent.get((event.type, event.reason), {})
        alike = {message: live for message, live in known.items() if oldest <= live["lastTimestamp"] <= newest}
        self.recent[event.type, event.reason] = alike
        return alike


class EventRecorder:
    """Writes and logs events. One that cannot be written, or exceeds the budget, is lost: it is not worth another reconcile."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._budgets: dict[Key, Budget] = {}

    async def record(self, job: RLJobMeta, events: tuple[Event, ...], now: float) -> None:
        """`now`: seconds since the epoch."""
        for event in events:
            budget = self._budgets.setdefault((job.namespace, job.name), Budget(BURST, now))
            alike = budget.alike(event, now)
            if alike and not budget.takes(now):  # reasons are few, so the first event of each is free
                log.debug("%s/%s: %s: %s", job.namespace, job.name, event.reason, event.message)
                continue
            log.info("%s/%s: %s: %s", job.namespace, job.name, event.reason, event.message)
            try:
                await self._write(job, event, alike, now)
            except ApiError as error:
                log.warning("event %s of %s/%s is lost: %s", event.reason, job.namespace, job.name, error)

    def forget(self, job: Key) -> None:
        self._budgets.pop(job, None)

    async def _write(self, job: RLJobMeta, event: Event, alike: dict[str, Object], now: float) -> None:
        """Counts a message once more, or writes a new event. `alike`: the recent events of its type and reason, to which it is added."""
        is_new = event.message not in alike and len(alike) >= SIMILAR
        key, message = (COMBINED, COMBINED + event.message) if is_new else (event.message, event.message)
        live = alike.get(key)
        if live is not None:
            name = {"name": live["metadata"]["name"], "namespace": job.namespace}
            news = {"message": message[:1024], "lastTimestamp": stamp(now), "count": live["count"] + 1}
            try:
                alike[key] = await self._api.merge({"kind": "Event", "metadata": name} | news, live)
                return
            except (Conflict, NotFound):  # the API server keeps events for an hour, or less
                pass
        alike[key] = await self._api.create(event_object(job, event, message, now))


def event_object(job: RLJobMeta, event: Event, message: str, now: float) -> Object:
    """A core/v1 Event about the job. `now`: seconds since the epoch."""
    about = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": message[:1024],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
