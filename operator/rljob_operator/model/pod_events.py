"""Why pods of a job do not exist, or do not start, where only events say so. The controller of a StatefulSet names a quota, a LimitRange, a
PriorityClass that does not exist, or an admission webhook. The kubelet names a volume that it cannot mount, such as a ConfigMap that nobody has made.
Events are read when pods have been missing, or have not started, for some time.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api import names
from rljob_api.text import one_line
from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Api, ApiError, Key, Object
from rljob_operator.times import seconds

log = logging.getLogger(__name__)

PATIENCE, INTERVAL = 5.0, 30.0
"""Seconds for which pods may be missing before anybody asks why, and between two questions."""
STARTING = 10.0
"""Seconds that pods may take to start before anybody asks why they do not."""
MOST_ASKED = 5
"""Pods of a job about which the kubelets are asked at once."""
LONGEST = 500
"""Characters of a reason."""


@dataclass(slots=True)
class Asked:
    """What was found of a job that lacks pods."""

    due: float
    """When to ask, in seconds since the epoch."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By role, or by the pod's uid."""

    def is_due(self, now: float) -> bool:
        """Whether to ask now; the next time is INTERVAL later. A time that is later still was set before the clock was set back."""
        if now < self.due <= now + INTERVAL:
            return False
        self.due = now + INTERVAL
        return True


class UncreatedPods:
    """Asks for the events of StatefulSets whose pods are missing."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[Key, Asked] = {}
        self._complete: dict[Key, dict[str, float]] = {}
        """When all pods of a role were there last, in seconds since the epoch. An event that is older is about another shortage."""

    async def reasons(
        self, job: Key, sets: Iterable[Mapping[str, Any]], pods: Iterable[Pod], now: float
    ) -> dict[str, str]:
        """Why pods of the job's StatefulSets do not exist, by role, as far as that is known."""
        there, short, complete = [pod.role for pod in pods], [], self._complete.setdefault(job, {})
        for one in sets:
            if there.count(_role(one)) < one["spec"]["replicas"]:
                short.append(one)
            else:
                complete[_role(one)] = now
        if not short:
            self._asked.pop(job, None)
            return {}
        asked = self._asked.setdefault(job, Asked(now + PATIENCE))
        if asked.is_due(now):
            since = {_role(one): min(complete.get(_role(one), 0.0), now) for one in short}
            found = {_role(one): await self._reason(one, since[_role(one)]) for one in short}
            asked.reasons = {role: why for role, why in found.items() if why}
        return {role: asked.reasons[role] for role in map(_role, short) if role in asked.reasons}

    def due(self, job: Key) -> float | None:
        """When to ask for the job's pods, in seconds since the epoch; None: all exist."""
        asked = self._asked.get(job)
        return asked.due if asked else None

    def forget(self, job: Key) -> None:
        self._asked.pop(job, None)
        self._complete.pop(job, None)

    async def _reason(self, stateful_set: Mapping[str, Any], since: float) -> str:
        """The newest reason; empty: there is none, or it cannot be read. `since`: seconds since the epoch."""
        events = await _events(self._api, stateful_set["metadata"], "reason=FailedCreate")
        newest = max((e for e in events if seconds(_time(e)) >= int(since)), key=_time, default={})
        said = one_line(str(newest.get("message") or ""))
        return said.rpartition("failed error: ")[2][:LONGEST]


class UnstartedPods:
    """Asks for the events of pods that have a node and no container yet, though nothing in their status says why."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[Key, Asked] = {}

    async def reasons(self, job: Key, pods: Iterable[Pod], now: float) -> dict[str, str]:
        """What the kubelets say of the first such pod of each role, by its uid, as far as that is known."""
        first = {pod.role: pod for pod in sorted(pods, key=lambda pod: -pod.ordinal) if _is_unstarted(pod)}
        if not first:
            self._asked.pop(job, None)
            return {}
        asked = self._asked.setdefault(job, Asked(now + STARTING))
        if asked.is_due(now):
            some = [*first.values()][:MOST_ASKED]
            found = {pod.uid: await self._reason(job[0], pod) for pod in some}
            asked.reasons = {uid: why for uid, why in found.items() if why}
        return {pod.uid: asked.reasons[pod.uid] for pod in first.values() if pod.uid in asked.reasons}

    def due(self, job: Key) -> float | None:
        """When to ask for the job's pods, in seconds since the epoch; None: all have started, or say themselves why not."""
        asked = self._asked.get(job)
        return asked.due if asked else None

    def forget(self, job: Key) -> None:
        self._asked.pop(job, None)

    async def _reason(self, namespace: str, pod: Pod) -> str:
        """The newest of its events, if that is a warning or the pull of an image; empty: it is another one, there is none, or it cannot be read."""
        events = await _events(self._api, {"namespace": namespace, "name": pod.name, "uid": pod.uid})
        newest = max(events, key=lambda e: (_time(e), e.get("type") != "Warning"), default={})
        if newest.get("type") != "Warning" and newest.get("reason") != "Pulling":
            return ""
        said = ": ".join(str(newest[key]) for key in ("reason", "message") if newest.get(key))
        return one_line(said)[:LONGEST]


def _is_unstarted(pod: Pod) -> bool:
    silent = not (pod.waiting or pod.exited or pod.failed)
    return bool(pod.node) and pod.phase == "Pending" and silent and not (pod.running or pod.deleting)


async def _events(api: Api, of: Mapping[str, Any], *fields: str) -> list[Object]:
    """Events of an object, of which `of` is the metadata. None if they cannot be read, which is no reason to stop."""
    selected = ",".join((f"involvedObject.uid={of['uid']}", *fields))
    try:
        pages = [page async for page in api.pages("Event", of["namespace"], fields=selected)]
    except ApiError as error:
        log.warning("events of %s/%s: %s", of["namespace"], of["name"], error)
        return []
    return [event for page in pages for event in page.objects]


def _role(stateful_set: Mapping[str, Any]) -> str:
    return str((stateful_set["metadata"].get("labels") or {}).get(names.LABEL_ROLE, ""))


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
