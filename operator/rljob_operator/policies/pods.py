"""Pods that the operator deletes itself, so that their StatefulSets replace them, and pods that were deleted and do not end, although their nodes
answer. The gang continues without the latter (see model/ordinals.py).

Credentials are a reason for the former: pods get the token of the rollout servers and that of their ServiceAccount when they start, and only then.
The operator may not read Secrets. A kubelet says when one is missing, and the trainer when its value has changed.

Sandboxes are used once, another reason. One whose container has ended is replaced by another pod, whoever ended it: the agent that gave it back, the
driver that had claimed it and is gone, or the kernel for lack of memory. So nobody has to remember a claim, and none outlives what made it. The
kubelet starts the container again in the old pod. What it left there (shared memory, the volumes of the pod) is no clean start, so that life is
given to nobody (render/channel.py). A claim ends after claimSeconds, by the driver. One whose container still does not end then is held by what its
program did, and is replaced, too.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from rljob_api import names, reasons
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, StuckPod
from rljob_operator.cache.nodes import OUT_OF_SERVICE
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import certainly_dead, frees_its_node, is_lost, is_stuck, lost_at, target
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.causes import member_statuses
from rljob_operator.policies.change import Change, Event, give_command, set_
from rljob_operator.policies.opening import outdated
from rljob_operator.schedulers.base import has_gate, is_kept
from rljob_operator.times import is_ahead, is_past, seconds, stamp


def replace_token(s: Snapshot, status: JobStatus) -> Change:
    """Replaces the Secret of all pods. They hold the old value until they are replaced, so an open attempt is drained."""
    trouble = _missing(s, status) or _refused(s, status)
    if not trouble:
        return Change(status)
    status = set_(status, token=status.token + 1)
    attempt = status.attempt
    if attempt and is_open(attempt) and attempt.command == "run":
        status = set_(status, attempt=give_command(attempt, "drain", reasons.TOKEN_REPLACED, s.now))
    return Change(status, (Event("Warning", reasons.TOKEN_REPLACED, f"{trouble}; all pods get a new token"),))


def replace_account(s: Snapshot, status: JobStatus) -> Change:
    """Deletes pods that are older than their ServiceAccount: the API server refuses their tokens, so they get no command and write no report."""
    stale = tuple(pod for pod in s.pods if s.has_lost_account(pod) and not pod.deleting)
    if not stale:
        return Change(status)
    attempt = status.attempt
    if attempt and is_open(attempt) and attempt.command != "stop":
        status = set_(status, attempt=give_command(attempt, "stop", reasons.ACCOUNT_REPLACED, s.now))
    text = "the ServiceAccount was deleted and made again, and the API server refuses the tokens of older pods"
    deleted = f"{', '.join(pod.name for pod in stale)}: deleted, since {text}"
    return Change(status, (Event("Warning", reasons.ACCOUNT_REPLACED, deleted),), delete=stale)


def _missing(s: Snapshot, status: JobStatus) -> str:
    """A pod that cannot start without the Secret, by the kubelet's message; empty: there is none."""
    secret = names.token(s.job.name, s.job.uid, status.token)
    waiting = (p for p in s.pods if not p.deleting and f'secret "{secret}" not found' in p.waiting)
    return next((f"pod {p.name} finds no Secret {secret}" for p in waiting), "")


def _refused(s: Snapshot, status: JobStatus) -> str:
    """A server that refuses the trainer's token; empty: there is none."""
    attempt = status.attempt
    progress = s.progress_of(attempt) if attempt and is_open(attempt) and attempt.command == "run" else None
    if progress is None:
        return ""
    refusing = {*progress.unauthorized, *(r.pod for r in progress.rollouts if r.unauthorized)}
    return next((f"{p.name} refuses the trainer's token (401)" for p in s.servers if p.name in refusing), "")


STOP_TIMEOUT = 60.0
"""Seconds that a launcher has to report the end of a stopped attempt. It kills its ranks within a few."""


def delete_pods(s: Snapshot, status: JobStatus) -> Change:
    limit = s.lifecycle.node_loss_seconds
    dead = tuple(p for p in s.pods if certainly_dead(p) and not is_stuck(p, limit, s.now))  # finalizers outlast it
    change = _obstacles(s, status)
    unneeded = tuple(_unneeded(s, change.status))
    events = tuple(_event(p, "its node is gone or out of service") for p in dead)
    events += tuple(_event(p, "another pod has taken its place") for p in unneeded)
    due = change.due + lost_at(s.pods, limit, s.now)
    return replace(change, events=change.events + events, delete=change.delete + unneeded, force=dead, due=due)


def _unneeded(s: Snapshot, status: JobStatus) -> Iterator[Pod]:
    """Pods that hold nodes for nothing: their own were lost and are back, and others have taken their places in the open attempt or in their server.
    A StatefulSet makes all pods below its highest ordinal, so it replaces them, and the replacements stay gated."""
    current = target(s, status)
    if current is None or not is_open(status.attempt):
        return
    for role in (*current.spec.gang_sizes, *{server.role for server in current.servers}):
        ordinals = current.ordinals[role]
        for pod in s.of(role) if has_gate(current.spec, role) else ():
            keeps = pod.ordinal in ordinals or pod.ordinal > max(ordinals)
            if not keeps and frees_its_node(s, pod):
                yield pod


def _obstacles(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is not None and is_open(attempt):
        return _unresponsive_members(s, status, attempt)
    if s.spec is None or status.outcome or status.suspended:
        return Change(status)
    stale = outdated(s, s.spec, status)
    return Change(status, tuple(_event(p, "its template is outdated") for p in stale), delete=stale)


def _unresponsive_members(s: Snapshot, status: JobStatus, attempt: Attempt) -> Change:
    """Members whose launchers do not answer `stop`: no attempt may open while they may still run."""
    if attempt.command != "stop":
        return Change(status)
    commanded = seconds(attempt.commanded_at)
    until = commanded + STOP_TIMEOUT
    if is_past(commanded, s.now) and s.now < until:  # otherwise the clock was set back
        return Change(status, due=(until,))
    silent = tuple(m.pod for m in member_statuses(s, attempt) if not m.ended and m.pod and not m.pod.deleting)
    return Change(status, tuple(_event(p, "its launcher does not answer") for p in silent), delete=silent)


def _event(pod: Pod, why: str) -> Event:
    return Event("Normal", reasons.MEMBER_DELETED, f"pod {pod.name} is deleted: {why}")


MOST = 8
"""Stuck pods that the status names."""


def let_ended_pods_go(s: Snapshot, status: JobStatus) -> Change:
    """Takes the backend's finalizer from pods that were deleted and have ended. Kueue (0.18.4, 0.19.2) keeps it until others replace the pods of an
    evicted group, and a StatefulSet makes no others while the names are in use (kueue#14632)."""
    return Change(status, let_go=tuple(filter(is_kept, s.pods)))


def report_stuck_pods(s: Snapshot, status: JobStatus) -> Change:
    """Names them in the status, and in one event each."""
    known = {pod.uid for pod in status.stuck_pods}
    stuck = sorted((p for p in s.pods if _is_named(s, p, known)), key=lambda p: p.name)
    named = [_stuck(pod) for pod in stuck[:MOST]]
    if named == status.stuck_pods:
        return Change(status)
    news = tuple(Event("Warning", reasons.POD_STUCK, _sentence(pod)) for pod in named if pod.uid not in known)
    return Change(set_(status, stuck_pods=named), news)


def _is_named(s: Snapshot, pod: Pod, known: Collection[str]) -> bool:
    """Whether the pod is stuck, and its node answers, or has done so when the pod was named first and is not lost since. `known`: uids of pods that
    are named."""
    limit = s.lifecycle.node_loss_seconds
    answers = pod.lost_since is None or (pod.uid in known and not is_lost(pod, limit, s.now))
    return answers and is_stuck(pod, limit, s.now)


def stuck_pods(stuck: Sequence[StuckPod]) -> str:
    """A sentence about these pods; empty: there are none."""
    others = "; others do not end either" if len(stuck) > 1 else ""
    return _sentence(stuck[0]) + others if stuck else ""


def _sentence(stuck: StuckPod) -> str:
    where = f" on node {stuck.node}" if stuck.node else ""
    return f"pod {stuck.pod}{where} {stuck.why}"


def _stuck(pod: Pod) -> StuckPod:
    since = stamp(pod.delete_by or 0.0)
    return StuckPod(pod=pod.name, uid=pod.uid, node=pod.node, since=since, why=_why(pod, since))


def _why(pod: Pod, since: str) -> str:
    if pod.running:
        action = f"delete it by force, or taint the node {OUT_OF_SERVICE}"
        return f"should have ended at {since} and its container still runs: the process or its node hangs; {action}"
    if pod.finalizers:
        return (
            f"has ended, and since {since} is kept by {_finalizers(pod.finalizers)}, whose controller has to remove it"
        )
    return (
        f"should have ended at {since} and its kubelet does not let it go: look at its volumes, or delete it by force"
    )


def _finalizers(names: Iterable[str]) -> str:
    first, *others = names
    return f"finalizers {first} and {', '.join(others)}" if others else f"finalizer {first}"


LEAST_SECONDS = 10.0
"""Age at which a pod is replaced, at least: an image in which the helper cannot run would otherwise cost a pod at a time, without end."""
STUCK_SECONDS = 60.0
"""After claimSeconds, in which a helper that runs has ended: silence, which it notices after 30 s, included."""


def replace_sandboxes(s: Snapshot, status: JobStatus) -> Change:
    pods = [pod for pod in s.servers if names.is_sandbox_role(pod.role) and not pod.deleting]
    spec = s.spec_of(status.attempt)
    later, delete = [], []
    for pod in pods:
        ended = pod.exited or (pod.claim and pod.phase == "Failed")  # of a StatefulSet, its controller replaces it
        if ended and not is_ahead(_due(s, pod), LEAST_SECONDS, s.now):
            delete.append(pod)
        elif ended:
            later.append(_due(s, pod))
        else:
            freed_at = _freed_at(pod, spec) if spec else None
            if freed_at is not None and freed_at <= s.now:
                delete.append(pod)
            elif freed_at is not None:
                later.append(freed_at)
    return Change(status, due=tuple(sorted(later)[:1]), delete=tuple(delete))


def _due(s: Snapshot, pod: Pod) -> float:
    """A pod may have waited for its claim."""
    claim = s.children.get(("SandboxClaim", pod.claim))
    since = seconds(claim["metadata"]["creationTimestamp"]) if claim else pod.created
    return since + LEAST_SECONDS


def _freed_at(pod: Pod, spec: RLJobSpec) -> float | None:
    """When no claim can hold it any more; None: none holds it."""
    number = int(pod.role.removeprefix(names.ROLE_SANDBOX))
    if not pod.running or pod.unready_since is None or number >= len(spec.environments):
        return None
    return pod.unready_since + spec.environments[number].claim_seconds + STUCK_SECONDS
