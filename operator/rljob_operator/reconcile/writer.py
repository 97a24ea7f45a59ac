"""The writes of one reconcile. reconciler.py decides their order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

from rljob_api import names, reasons
from rljob_api.status import JobStatus
from rljob_operator.cache.cache import job_of
from rljob_operator.cache.cluster import SANDBOX_KINDS, UNWATCHED, ClusterCache
from rljob_operator.cache.pods import Pod
from rljob_operator.cache.reports import control_text
from rljob_operator.kube.api import AlreadyExists, Api, ApiError, Conflict, Key, NotFound, Object, kind_of
from rljob_operator.model.children import ChildProblem, conflict, controls, covers, refusal, refused
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Ungate
from rljob_operator.reconcile.refusals import Refusals, Write
from rljob_operator.schedulers.base import is_gated, is_kept, operations, without_finalizer

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Children and pods that are written concurrently."""
IMMUTABLE = "an admission policy makes it immutable, so that neither operator nor pods can write it; exempt objects with the label {}"
FIRST = ("ServiceAccount", "Role", "Secret")
"""Kinds that are written before others. A pod needs its account, and a binding its Role. The Secret is not looked for: once pods exist, it counts as
existing (see render/)."""
MAKE_SANDBOXES = ("SandboxWarmPool", "SandboxClaim")
"""Kinds for which agent-sandbox makes pods. It looks only once a minute for the SandboxTemplate of a claim, so that is there before them."""


class ForeignStatus(Conflict):
    """The status is neither what we have read nor what we have tried to write: we are not the only ones who write it."""


class Writer:
    """Every answer enters the cache, so that the next reconcile sees what this one has written. The cache asks for that reconcile (see `on_change`),
    since the watch's event of the same version will be no change. Only of the status the reconciler decides whether there is more to do."""

    def __init__(self, api: Api, cache: ClusterCache) -> None:
        self._api, self._cache = api, cache
        self._refusals = Refusals()
        self._unanswered: dict[Key, JobStatus] = {}
        """Statuses whose writes have failed, and may have been done nevertheless."""

    async def status(self, job: Object, status: JobStatus) -> None:
        """Writes the status with the resourceVersion that was read. Raises Conflict if the job was changed or deleted since; it is read again
        then."""
        kind, *key = _name(job)
        sent = self._unanswered.pop((key[0], key[1]), None)
        try:
            self._cache.jobs.put(await self._api.replace(job | {"status": status.dump()}, "status"))
        except (Conflict, NotFound) as error:
            live = await self._refresh(kind, key[0], key[1])
            foreign = live is not None and _status(live) not in (_status(job), sent and sent.dump())
            raise (ForeignStatus if foreign else Conflict)(error.code, f"status of {key[1]}: {error}") from error
        except ApiError:
            self._unanswered[key[0], key[1]] = status
            raise

    def forget(self, job: Key) -> None:
        """Drops what is known of a job that was deleted."""
        self._unanswered.pop(job, None)
        self._refusals.forget(job)

    def due(self, s: Snapshot, problems: Collection[ChildProblem]) -> float | None:
        """Seconds until the first of what this pass could not do is tried again; None: it could do everything."""
        return self._refusals.due((s.job.namespace, s.job.name), problems, s.now)

    async def _attempt(
        self, s: Snapshot, write: Write, send: Callable[[], Awaitable[ChildProblem | None]]
    ) -> ChildProblem | None:
        return await self._refusals.attempt((s.job.namespace, s.job.name), write, s.now, send)

    async def _attempt_at_once(
        self, s: Snapshot, sends: Iterable[tuple[Write, Callable[[], Awaitable[ChildProblem | None]]]]
    ) -> list[ChildProblem]:
        """Returns why some could not be done."""
        problems = await together([self._attempt(s, write, send) for write, send in sends])
        return [problem for problem in problems if problem]

    async def children(self, s: Snapshot, wanted: list[Object]) -> tuple[ChildProblem, ...]:
        """Creates what is missing, corrects what is ours, and leaves alone what is not. Returns the children that could not be written.

        After such a problem no pod starts, since it would find somebody else's object in place of ours: what makes pods stays as it is, StatefulSets
        whose pods are not gated are written last (see `waves`), and the reconciler ungates no pod. All else is written, so that the job still gets
        its commands and lets its pods go.
        """
        missing = [child for child in wanted if not self._is_current(s, child)]
        problems = list[ChildProblem]()
        for wave in waves(missing):
            writable = [child for child in wave if not (problems and _adds_pods(s, child))]
            problems += filter(None, await together([self._child(s, child) for child in writable]))
        return tuple(problems)

    def _is_current(self, s: Snapshot, child: Object) -> bool:
        live = _seen(s, child)
        return live is not None and controls(s.job, live) and covers(live, child) and not _is_frozen(live)

    async def _child(self, s: Snapshot, child: Object) -> ChildProblem | None:
        live = _seen(s, child)
        sent = None if child["kind"] == "Secret" else child  # a new one has another value each time
        over = None if live is None or _is_frozen(live) else _written_part(live)
        write = Write("write", child, (sent, over))
        return await self._attempt(s, write, partial(self._write_child, s, child))

    async def _write_child(self, s: Snapshot, child: Object) -> ChildProblem | None:
        live = _seen(s, child)
        known = live is not None and controls(s.job, live)
        if live and kind_of(child) in UNWATCHED and not known:  # it may be of a job that had the name before
            live = await self._refresh(*_name(child))
        if live is None:
            return await self._create(s, child)
        if not controls(s.job, live):
            return conflict(child, "is not controlled by this job")
        if _is_frozen(live):
            await self._delete(*_name(live), live["metadata"]["uid"])
            self._cache.delete(kind_of(live), (s.job.namespace, live["metadata"]["name"]))
            return await self._create(s, child)
        await self._correct(s, child, live)
        return None

    async def _create(self, s: Snapshot, child: Object) -> ChildProblem | None:
        try:
            created = await self._api.create(child)
            self._put(created, s)
            if _is_frozen(created):
                label = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
                return refused("write", f"{child['kind']} {child['metadata']['name']}", IMMUTABLE.format(label))
        except AlreadyExists:
            if child["kind"] == "Secret":  # its name carries our uid, and we may not look
                return None
            live = await self._refresh(*_name(child))
            if live is None or (controls(s.job, live) and job_of(live) == job_of(child)):
                raise
            return conflict(child, "has not this job's labels")
        except NotFound as error:  # what it refers to is missing, or the kind
            if kind_of(child) not in UNWATCHED:
                return refusal("write", child, error)
            unknown = f"the cluster does not know the kind {child['kind']} ({child['apiVersion']}), which spec.scheduling.backend needs"
            return ChildProblem(reasons.CHILD_CONFLICT, unknown)
        return None

    async def _correct(self, s: Snapshot, child: Object, live: Object) -> None:
        """Writes a live child again. ConfigMaps, whose keys are all set, are merged in one request; others are read first, for their
        managedFields."""
        try:
            if child["kind"] == "ConfigMap":
                self._put(await self._api.merge(child, live), s)
                return
            live = await self._api.get(kind_of(child), s.job.namespace, child["metadata"]["name"])
            self._put(live)
            if controls(s.job, live) and not covers(live, child):
                self._put(await self._api.apply(child, live))
        except (Conflict, NotFound):
            await self._refresh(*_name(child))
            raise
        if not controls(s.job, live):
            raise Conflict(409, f"{child['kind']} {child['metadata']['name']} was replaced")

    async def _refresh(self, kind: str, namespace: str, name: str) -> Object | None:
        """Reads an object into the cache; None: it does not exist."""
        try:
            live = await self._api.get(kind, namespace, name)
        except NotFound:
            self._cache.delete(kind, (namespace, name))
            return None
        self._put(live)
        return live

    def _put(self, obj: Object, s: Snapshot | None = None) -> None:
        """`s`: if what was rendered of it may be in the object."""
        if obj["kind"] != "Secret":
            self._cache.put(obj, s.messages.get(control_text(obj)) if s else None)

    async def delete_pods(self, s: Snapshot, pods: Collection[Pod], *, force: bool = False) -> list[ChildProblem]:
        """So that others take their places: of one that a SandboxClaim has, the claim is deleted. `force`: without waiting for the kubelet, after
        which the claim gets another pod. Returns why some are not."""
        problems = await self._delete_claims(s, [pod.claim for pod in pods if pod.claim and not force])
        sends = [
            (
                Write("delete", _pod(pod), (pod.uid, force)),
                partial(self._delete, "Pod", s.job.namespace, pod.name, pod.uid, force=force),
            )
            for pod in pods
            if force or not pod.claim
        ]
        return problems + await self._attempt_at_once(s, sends)

    async def let_go(self, s: Snapshot, pods: Iterable[Pod]) -> list[ChildProblem]:
        """Takes the finalizers of backends from pods. Returns why some keep them."""
        namespace = s.job.namespace
        sends = [(Write("write", _pod(pod), pod.uid), partial(self._let_go, namespace, pod)) for pod in pods]
        return await self._attempt_at_once(s, sends)

    async def let_all_go(self, job: Key) -> None:
        """Takes the finalizers of backends from the pods of a job that is gone, once they have ended. The queue retries what is refused."""
        pods = [entry.value for entry in self._cache.pods.of(job).values()]
        await together([self._let_go(job[0], pod) for pod in pods if is_kept(pod)])

    async def _let_go(self, namespace: str, pod: Pod) -> None:
        """The API server refuses the patch if the finalizer is gone, or the pod."""
        try:
            await self._api.patch("Pod", namespace, pod.name, without_finalizer(pod))
        except ApiError as error:
            if error.code not in (404, 409, 422):
                raise
            await self._refresh("Pod", namespace, pod.name)

    async def _delete_claims(self, s: Snapshot, named: Iterable[str]) -> list[ChildProblem]:
        known = (self._cache.children["SandboxClaim"].get((s.job.namespace, name)) for name in named)
        return await self.delete(
            s, [dict(c.value) for c in known if c and "deletionTimestamp" not in c.value["metadata"]]
        )

    async def delete(self, s: Snapshot, objects: Iterable[Object]) -> list[ChildProblem]:
        """Returns why some stay."""
        sends = [
            (Write("delete", obj, obj["metadata"]["uid"]), partial(self._delete, *_name(obj), obj["metadata"]["uid"]))
            for obj in objects
        ]
        return await self._attempt_at_once(s, sends)

    async def delete_children(self, s: Snapshot) -> list[ChildProblem]:
        """Deletes all children but the token's Secret, which goes with the job: we may create Secrets and nothing else. Returns why some stay."""
        return await self.delete(s, [dict(live) for live in s.children.values() if controls(s.job, live)])

    async def _delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        try:
            await self._api.delete(kind, namespace, name, uid, force=force)
        except NotFound:
            log.info("%s %s is gone already", kind, name)
        except Conflict:
            await self._refresh(kind, namespace, name)
            raise
        if kind in UNWATCHED:
            self._cache.delete(kind, (namespace, name))

    async def ungate(self, s: Snapshot, ungate: Iterable[Ungate]) -> list[ChildProblem]:
        """Returns why some pods are not let go."""
        sends = [
            (
                Write("ungate", _pod(one.pod), (one.pod.uid, one.node, one.head)),
                partial(self._ungate, s.job.namespace, one, s.now),
            )
            for one in ungate
        ]
        return await self._attempt_at_once(s, sends)

    async def _ungate(self, namespace: str, ungate: Ungate, now: float) -> None:
        """Patches a pod once: the API server refuses the patch if the pod was ungated already, or is gone."""
        pod = ungate.pod
        try:
            self._put(await self._api.patch("Pod", namespace, pod.name, operations(pod, ungate.node, now, ungate.head)))
        except ApiError as error:
            if error.code not in (404, 409, 422) or is_gated(await self._refresh("Pod", namespace, pod.name), pod.uid):
                raise
            raise Conflict(409, f"pod {pod.name} was ungated already, or is gone") from error


def waves(children: list[Object]) -> list[list[Object]]:
    """Children in groups, each of which is written at once when the group before it exists. Pods that are gated may exist before what they need;
    StatefulSets of others come last."""
    first = [child for child in children if child["kind"] in FIRST]
    last = [child for child in children if _makes_pods_at_once(child)]
    rest = [child for child in children if child not in first and child not in last]
    return [first, sorted(rest, key=lambda child: child["kind"] != "StatefulSet"), last]


def _adds_pods(s: Snapshot, child: Object) -> bool:
    """Whether more pods may follow from the child than there are."""
    if child["kind"] != "StatefulSet":
        return child["kind"] in SANDBOX_KINDS
    live = _seen(s, child)
    return bool(child["spec"]["replicas"] > (live["spec"]["replicas"] if live else 0))


def _written_part(live: Object) -> object:
    """Differs if what a write may correct has changed: not with the status, which changes with each pod that becomes ready."""
    meta = live["metadata"]
    if "generation" not in meta:  # it has no status
        return meta["resourceVersion"]
    return meta["generation"], meta.get("labels"), meta.get("annotations"), meta.get("ownerReferences")


def _is_frozen(live: Object) -> bool:
    """Whether nobody can write the ConfigMap any more."""
    return live["kind"] == "ConfigMap" and live.get("immutable") is True


def _pod(pod: Pod) -> Object:
    return {"kind": "Pod", "metadata": {"name": pod.name}}


def _makes_pods_at_once(child: Object) -> bool:
    if child["kind"] in MAKE_SANDBOXES:
        return True
    if child["kind"] != "StatefulSet":
        return False
    gates = child["spec"]["template"]["spec"].get("schedulingGates", [])
    return all(gate["name"] != names.GATE for gate in gates)


async def together[T](work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all of them, AT_ONCE at a time, and then raises the first error. A failure stops no other, so that every reconcile gets further."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(task: Coroutine[Any, Any, T]) -> T:
        async with free:
            return await task

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _seen(s: Snapshot, child: Object) -> Object | None:
    live = s.children.get((kind_of(child), child["metadata"]["name"]))
    return dict(live) if live is not None else None


def _status(job: Object) -> Object:
    status: Object = job.get("status") or {}
    return status


def _name(obj: Object) -> tuple[str, str, str]:
    return kind_of(obj), obj["metadata"]["namespace"], obj["metadata"]["name"]
