"""Takes the snapshot of a job from the cache. What is absent there is confirmed by a live read.

What is remembered between reconciles is here, too. It is empty after a restart, so nothing correct may depend on it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rljob_api import names
from rljob_api.protocol import Member
from rljob_api.quantity import Thousandths
from rljob_api.rules.engine import Violation
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, RLJobMeta
from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.cache.pods import Pod, parse_pod
from rljob_operator.cache.reports import CachedConfigMap
from rljob_operator.kube.api import Api, Key, NotFound, Object
from rljob_operator.model.children import ChildProblem, controls
from rljob_operator.model.occupied import AGAIN, occupation
from rljob_operator.model.pod_events import UncreatedPods, UnstartedPods
from rljob_operator.model.snapshot import Snapshot, is_open

AttemptId = tuple[str, int]
"""Job's uid and attempt's number."""


@dataclass(slots=True)
class ReconcilerState:
    """All of it, by job."""

    conflicts: dict[Key, tuple[ChildProblem, ...]] = field(default_factory=dict)
    """Children that could not be written, and why."""
    attempts: dict[Key, tuple[AttemptId, float]] = field(default_factory=dict)
    """The open attempt, and when we first saw it, in seconds since the epoch: its heartbeat counts as no older than that."""
    gone: dict[Key, tuple[AttemptId, set[str]]] = field(default_factory=dict)
    """The open attempt, and uids of its members' pods that a live read has not found."""

    def since(self, key: Key, attempt: AttemptId, now: float) -> float:
        """When we first saw this attempt: `now`, if it is new."""
        known = self.attempts.get(key)
        if known is None or known[0] != attempt:
            known = self.attempts[key] = (attempt, now)
        return known[1]

    def gone_in(self, key: Key, attempt: AttemptId) -> set[str]:
        """Uids of pods of this attempt that a live read has not found. Those of earlier attempts are forgotten."""
        known = self.gone.get(key)
        if known is None or known[0] != attempt:
            known = self.gone[key] = (attempt, set())
        return known[1]

    def forget(self, key: Key) -> None:
        for by_job in (self.conflicts, self.attempts, self.gone):
            by_job.pop(key, None)


ABSENT = 0.0
"""`lost_since` of a pod whose node does not exist."""


class Observer:
    """A watch that lags or has lost events looks like absence: of a member's pod, of a node, of a heartbeat. Each would end an attempt that may be
    alive, so each is confirmed by a GET. Everything else in the cache was true at some time, which is enough: see cache/cache.py."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        state: ReconcilerState,
        progress_interval: float,
        network_policies: bool = True,
    ) -> None:
        self._api, self._cache, self._state = api, cache, state
        self._interval, self._network_policies = progress_interval, network_policies
        self._uncreated, self._unstarted = UncreatedPods(api), UnstartedPods(api)
        self._occupied: dict[Key, float] = {}
        """When to look again at jobs whose directory another one has, in seconds since the epoch."""

    async def snapshot(self, key: Key, job: CachedJob, now: float) -> Snapshot:
        pods = [entry.value for entry in self._cache.pods.of(key).values()]
        attempt = job.status.attempt
        if attempt and is_open(attempt):
            gone = self._state.gone_in(key, (job.meta.uid, attempt.number))
            pods += await self._strays(key, attempt, {pod.uid for pod in pods}, gone)
        located = tuple([await self._on_its_node(pod) for pod in pods])
        snapshot = self._snapshot(key, job, located, now)
        if await self._read_heartbeat(key, snapshot):
            snapshot = self._snapshot(key, job, located, now)
        limit = snapshot.lifecycle.node_loss_seconds
        snapshot = replace(snapshot, pods=self._cache.deleted.observe(key, located, limit, now))
        sets = [o for (kind, _), o in snapshot.children.items() if kind == "StatefulSet" and controls(job.meta, o)]
        uncreated = await self._uncreated.reasons(key, sets, located, now)
        unstarted = await self._unstarted.reasons(key, located, now)
        if uncreated or unstarted:
            snapshot = replace(snapshot, uncreated=uncreated, unstarted=unstarted)
        return snapshot

    def due(self, job: Key, now: float) -> float | None:
        """Seconds until the job has to be observed again, even if nothing changes."""
        known = (self._uncreated.due(job), self._unstarted.due(job), self._occupied.get(job))
        return min((max(0.0, due - now) for due in known if due is not None), default=None)

    def forget(self, job: Key) -> None:
        self._uncreated.forget(job)
        self._unstarted.forget(job)
        self._occupied.pop(job, None)

    def _snapshot(self, key: Key, job: CachedJob, pods: tuple[Pod, ...], now: float) -> Snapshot:
        children = self._cache.children_of(key)
        config_maps = self._config_maps(key, job.meta)
        published = config_maps.get(names.control(key[1]))
        control = published.control if published else None
        result, occupied = job.validation.result, self._occupation(key, job, now)
        return Snapshot(
            job=job.meta,
            spec=None if occupied else result.accepted,
            violations=(*result.violations, *occupied),
            spec_suspend=bool(job.validation.raw.get("suspend")),
            status=job.status,
            pods=pods,
            gpus=self._gpus(key, pods, result.accepted, control.spec if control else None),
            failed=self._cache.failed.of(key),
            reports={
                config_map.report.pod: config_map.report for config_map in config_maps.values() if config_map.report
            },
            unreadable={
                config_map.pod: config_map.problem for config_map in config_maps.values() if config_map.problem
            },
            control=control,
            children=children,
            conflicts=self._state.conflicts.get(key, ()),
            quarantined=self._quarantined(job.status, pods),
            progress_interval=self._interval,
            policy=job.validation.policy,
            network_policy=self._network_policies,
            fresh_token=secrets.token_urlsafe(32),
            heartbeat_age=self._heartbeat_age(key, job, now),
            now=now,
        )

    def _occupation(self, key: Key, job: CachedJob, now: float) -> tuple[Violation, ...]:
        found = occupation(job, self._cache.jobs.values())
        if found:
            self._occupied[key] = now + AGAIN
        else:
            self._occupied.pop(key, None)
        return found

    def _quarantined(self, status: JobStatus, pods: tuple[Pod, ...]) -> dict[str, str]:
        nodes = {pod.node for pod in pods if pod.node} | {entry.node for entry in status.nodes}
        entries = ((name, self._cache.nodes.get(("", name))) for name in nodes)
        return {name: entry.value.quarantine for name, entry in entries if entry and entry.value.quarantine}

    def _gpus(self, key: Key, pods: tuple[Pod, ...], *specs: RLJobSpec | None) -> int:
        """GPUs of pods that are on nodes, or were sent there. `pods`: of the job; `specs`: of the next attempt, and of the one that runs. A pod
        is made from either, and asks for the resource that it names."""
        known = [spec for spec in specs if spec]
        usages = ((pod.role, self._cache.usage.get((key[0], pod.name))) for pod in pods)
        used = [(role, usage.value.requests) for role, usage in usages if usage]
        return sum(_gpus_of(role, requests, known) for role, requests in used if requests)

    def _config_maps(self, key: Key, job: RLJobMeta) -> dict[str, CachedConfigMap]:
        """ConfigMaps that the job controls, by name. A label alone, which anybody may set, is not enough."""
        config_maps = {name: entry.value for (_, name), entry in self._cache.config_maps.of(key).items()}
        return {name: config_map for name, config_map in config_maps.items() if controls(job, config_map.object)}

    async def _strays(self, key: Key, attempt: Attempt, known: set[str], gone: set[str]) -> list[Pod]:
        """Pods of members that exist although the cache does not have them, for example because their labels were removed."""
        strays = [await self._stray(key[0], m, gone) for m in attempt.members if m.pod_uid not in known | gone]
        return [pod for pod in strays if pod]

    async def _stray(self, namespace: str, member: Member, gone: set[str]) -> Pod | None:
        live = await self._live("Pod", namespace, member.pod)
        if live is None or live["metadata"]["uid"] != member.pod_uid:
            gone.add(member.pod_uid)
            return None
        return replace(parse_pod(live), role=member.role)

    async def _on_its_node(self, pod: Pod) -> Pod:
        """The pod, with whether its node answers. A pod on a silent node is not ready, so nodes of ready pods are not looked up."""
        if pod.ready or not pod.node:
            return pod
        node = self._cache.nodes.get(("", pod.node))
        if node is None:
            live = await self._live("Node", None, pod.node)
            if live:
                self._cache.put(live)
                node = self._cache.nodes.get(("", pod.node))
        if node is None:
            return replace(pod, lost_since=ABSENT)
        return node.value.holding(pod)

    async def _read_heartbeat(self, key: Key, s: Snapshot) -> bool:
        """Reads rank 0's report if the attempt seems to stall. Returns whether the cache has it now."""
        first = s.status.attempt.first if s.status.attempt else None
        if first is None or (s.heartbeat_age or 0.0) < s.lifecycle.stall_timeout_seconds:
            return False
        live = await self._live("ConfigMap", key[0], names.report(first.pod))
        if live is not None:
            self._cache.put(live)
        return live is not None

    def _heartbeat_age(self, key: Key, job: CachedJob, now: float) -> float | None:
        """The age counts on our clock, and at most from when we first saw this attempt. So a restart of the operator is not taken for a stall, and
        neither is an outage of the API server, after which the operator begins anew when it has its lease again."""
        attempt = job.status.attempt
        if attempt is None or not is_open(attempt):
            return None
        since = self._state.since(key, (job.meta.uid, attempt.number), now)
        return now - max(since, self._last_heartbeat(key, job.meta, attempt))

    def _last_heartbeat(self, key: Key, job: RLJobMeta, attempt: Attempt) -> float:
        """When we last saw rank 0's heartbeat advance in this attempt, in seconds since the epoch; 0: not yet."""
        member = attempt.first
        if member is None:
            return 0.0
        entry = self._cache.config_maps.get((key[0], names.report(member.pod)))
        cached = entry.value if entry and controls(job, entry.value.object) else None
        report = cached.report if cached else None
        is_current = report and (report.boot_id, report.attempt) == (member.boot_id, attempt.number)
        return cached.last_heartbeat if cached and is_current else 0.0

    async def _live(self, kind: str, namespace: str | None, name: str) -> Object | None:
        try:
            return await self._api.get(kind, namespace, name)
        except NotFound:
            return None


def _gpus_of(role: str, requests: Thousandths, specs: Sequence[RLJobSpec]) -> int:
    """GPUs of one pod. `specs`: one of which it was made from."""
    resources = {spec.trainer.resource_name for spec in specs}
    requested = sum(requests.get(name, 0) // 1000 for name in resources)
    if requested:
        return requested
    claimed = (s for s in specs if s.trainer.device == "gpu" and not s.trainer.resource_name and role in s.pods)
    return next((spec.processes_of(role) for spec in claimed), 0)
