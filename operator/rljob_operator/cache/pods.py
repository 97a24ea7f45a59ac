"""A pod's JSON, reduced to what decisions need; and the pods that have failed, also after they are gone: a StatefulSet replaces a failed pod within
milliseconds, and its last state goes with it.

What is remembered of failed pods explains failures and delays the next try. It is empty after a restart of the operator, so nothing correct depends
on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from rljob_api import names
from rljob_operator.cache.cache import is_ours
from rljob_operator.kube.api import Key, Object
from rljob_operator.times import seconds

USUAL_WAITS = ("ContainerCreating", "PodInitializing")
"""Reasons for which the container of every pod waits while it starts."""
OOM_KILLED = "OOMKilled"
"""Reason that the container runtime gives when the kernel has killed the container's processes for lack of memory."""
LONGEST = 1024
"""Characters of a message that a pod's status holds, at most: whoever may write the status may write anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The part of a pod that the operator reads."""

    name: str
    uid: str
    role: str
    ordinal: int
    claim: str = ""
    """The SandboxClaim whose pod it is; empty: it is a StatefulSet's."""
    created: float = 0.0
    """Seconds since the epoch, by the API server's clock."""
    node: str = ""
    """The node that it is bound to; empty: none yet."""
    ip: str = ""
    phase: str = "Pending"
    ready: bool = False
    unready_since: float | None = None
    """When it ceased to be ready, in seconds since the epoch by its node's clock; None: it is ready, or was never said not to be."""
    running: bool = False
    """The job's container in it has a live process."""
    deleting: bool = False
    delete_by: float | None = None
    """When its grace period ends or has ended, in seconds since the epoch by the API server's clock; None: nobody has deleted it."""
    finalizers: tuple[str, ...] = ()
    """What keeps it after its end."""
    disrupted: str = ""
    """Message of the DisruptionTarget condition, when it is true."""
    failed: str = ""
    """Why the kubelet has ended it, or has not admitted it, such as `Evicted: The node was low on resource: memory.`; empty: it has not."""
    lost_since: float | None = None
    """When its node ceased to be Ready, in seconds since the epoch by the cluster's clock; 0: the node does not exist any more; None: it is ready."""
    answers_since: float = 0.0
    """Since when its node is ready, in seconds since the epoch by the cluster's clock; 0: not known. Of a deleted pod, short silences of the node do
    not count (deleted_pods.py)."""
    out_of_service: bool = False
    """Its node is tainted out-of-service."""
    waiting: str = ""
    """Why the container does not run, such as `ImagePullBackOff: ...`."""
    exited: str = ""
    """How the container ended last, such as `OOMKilled (exit code 137)`."""
    last_words: tuple[str, ...] = ()
    """The last lines that it wrote before that, of a container that failed; of a sandbox none."""
    out_of_memory: bool = False
    """The kernel has ended its last life for lack of memory."""
    memory_limit: str = ""
    """The container's memory limit, such as `64Gi`; empty: it has none."""
    unschedulable: str = ""
    """The scheduler's message when no node takes it; empty: it does not say so."""
    template_hash: str = ""
    preempts: bool = True
    """Whether its PriorityClass lets it preempt others."""
    gates: tuple[str, ...] = ()
    """Names of its scheduling gates."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """Its affinity while it is gated, to which the node is added when it is ungated."""
    ungated_at: float | None = None
    """When we removed its gate, in seconds since the epoch; None: we have not."""

    @property
    def never_started(self) -> bool:
        """Whether its kubelet refused or lost it before the job's container ran, which is not the job's doing."""
        return self.phase == "Failed" and not (self.exited or self.running or self.disrupted)

    @property
    def has_ended(self) -> bool:
        """Whether nothing in it runs or will: the API server binds no pod that was deleted."""
        unbound = self.deleting and not self.node
        return (unbound or self.phase in ("Succeeded", "Failed")) and not self.running


def is_of_a_job(pod: Object) -> bool:
    """Whether its controller is a StatefulSet of the job that its labels name, or a Sandbox that a claim of the job has. A pod that somebody made
    with the same labels is not, nor is one that waits in a SandboxWarmPool."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    gang = names.gang(labels.get(names.LABEL_JOB, ""), labels.get(names.LABEL_ROLE, ""))
    owner: Object = next((o for o in meta.get("ownerReferences") or [] if o.get("controller")), {})
    if owner.get("kind") == "Sandbox":
        return is_ours(pod) and _claim(meta) != "" and str(owner.get("name")).startswith(f"{gang}-")
    return is_ours(pod) and (owner.get("kind"), owner.get("name")) == ("StatefulSet", gang)


def _claim(meta: Object) -> str:
    """The ordinal of the claim that has it; empty: none has."""
    given = str((meta.get("annotations") or {}).get(names.ANNOTATION_CLAIM, ""))
    labels = meta.get("labels") or {}
    return given if given.isdecimal() and names.is_sandbox_role(labels.get(names.LABEL_ROLE, "")) else ""


def parse_pod(pod: Object) -> Pod:
    """All fields but those about its node, which the observer adds. Only the job's own container counts, not those that service meshes inject."""
    meta, status = pod["metadata"], pod.get("status", {})
    labels = meta.get("labels") or {}
    role, claim = labels.get(names.LABEL_ROLE, ""), _claim(meta)
    own = names.container(role)
    container: Object = next((c for c in status.get("containerStatuses", []) if c["name"] == own), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    ordinal, notes = claim or meta["name"].rpartition("-")[2], meta.get("annotations") or {}
    ready = condition_of(status, "Ready")
    gates = tuple(gate["name"] for gate in pod.get("spec", {}).get("schedulingGates", []))
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        ordinal=int(ordinal) if ordinal.isdecimal() else -1,
        claim=names.pod(labels.get(names.LABEL_JOB, ""), role, int(claim)) if claim else "",
        created=_time(meta.get("creationTimestamp")) or 0.0,
        node=pod.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        ready=ready.get("status") == "True",
        unready_since=_time(ready.get("lastTransitionTime")) if ready.get("status") == "False" else None,
        running="running" in state,
        deleting="deletionTimestamp" in meta,
        delete_by=_time(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
        disrupted=_disrupted(status),
        failed=_failed(status, "deletionTimestamp" in meta),
        waiting=_waiting(state.get("waiting", {})),
        exited=_exited(ended) if ended else "",
        last_words=_last_words(ended) if ended and not names.is_sandbox_role(role) else (),
        out_of_memory=bool(ended) and ended.get("reason") == OOM_KILLED,
        memory_limit=_memory_limit(pod, own),
        unschedulable=_unschedulable(status),
        template_hash=notes.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        preempts=pod["spec"].get("preemptionPolicy") != "Never",
        gates=gates,
        affinity=pod["spec"].get("affinity", {}) if gates else {},
        ungated_at=_time(notes.get(names.ANNOTATION_UNGATED)),
    )


def condition_of(status: Object, kind: str) -> Object:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def _disrupted(status: Object) -> str:
    condition = condition_of(status, "DisruptionTarget")
    if condition.get("status") != "True":
        return ""
    said: str = condition.get("message") or condition.get("reason") or "disrupted"
    return said[:LONGEST]


def _failed(status: Object, deleting: bool) -> str:
    """A pod that somebody deletes ends in the same phase, without a reason: nobody but its kubelet gives one."""
    if status.get("phase") != "Failed":
        return ""
    said = ": ".join(text for text in (status.get("reason"), status.get("message")) if text)
    return said[:LONGEST] or ("" if deleting else "no reason given")


def _time(note: str | None) -> float | None:
    """None for a time that cannot be read: whoever may write the pod may write anything here."""
    try:
        return seconds(note) if note else None
    except (ValueError, OverflowError):
        return None


def _waiting(waiting: Object) -> str:
    if not waiting or waiting.get("reason") in USUAL_WAITS:
        return ""
    return ": ".join(t for t in (waiting.get("reason"), waiting.get("message")) if t)


def _exited(terminated: Object) -> str:
    return f"{terminated.get('reason', 'Error')} (exit code {terminated.get('exitCode')})"


def _last_words(terminated: Object) -> tuple[str, ...]:
    """The end of its termination message, which the kubelet takes from the log (render/template.py)."""
    said = (terminated.get("message") or "")[-LONGEST:]
    return tuple(line for line in said.splitlines() if line.strip())


def _memory_limit(pod: Object, name: str) -> str:
    container: Object = next((c for c in pod.get("spec", {}).get("containers", []) if c.get("name") == name), {})
    return str((container.get("resources") or {}).get("limits", {}).get("memory", ""))


def _unschedulable(status: Object) -> str:
    """The scheduler's message, unless the pod is only gated."""
    condition = condition_of(status, "PodScheduled")
    usual = condition.get("status") != "False" or condition.get("reason") == "SchedulingGated"
    return "" if usual else condition.get("message", "")


REMEMBERED_SECONDS = 3600.0
"""Seconds for which a failure that points at a node is remembered, and for which the node is avoided after the last one."""
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
    """The last failed pod of each name, by job, for as long as failures count: pods of sandboxes have names of their own. `clock`: seconds since the
    epoch."""

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
        known = self._jobs.setdefault(job, {})
        known.pop(pod.name, None)
        known[pod.name] = FailedPod(pod, now, times)
        oldest = self._clock() - REMEMBERED_SECONDS
        for name in [*takewhile(lambda name: known[name].at < oldest and name != pod.name, known)]:
            del known[name]

    def of(self, job: Key) -> Mapping[str, FailedPod]:
        """By the pod's name."""
        return dict(self._jobs.get(job, {}))

    def forget(self, job: Key) -> None:
        self._jobs.pop(job, None)

    def clear(self) -> None:
        self._jobs.clear()
