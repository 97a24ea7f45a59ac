"""Servers of several pods live and end as a whole, in *generations*: one starts when all pods of the server are there, and ends when one of them is
lost or fails, whereupon the others end their parts, too, and wait. Nothing else ends with it: neither other servers nor the attempt.

A server that has lost a pod and gets no node for the next one would hold the nodes of the others for nothing. After strandedSeconds it gives them up
and is placed again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rljob_api import names, reasons
from rljob_api.server_group import ServerPart
from rljob_api.status import JobStatus
from rljob_api.status_parts import RolloutFailure, ServerStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import answering_head, frees_its_node, target
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.causes import BY_KIND, why_gone
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.progress import failure_sentence
from rljob_operator.times import backoff, is_ahead, is_backing_off, is_past, seconds, stamp

MOST_NAMED = 5
"""Servers that one event names."""
STABLE_SECONDS = 1200.0
"""Seconds after which a generation's failure counts as the first one again."""


@dataclass(frozen=True, slots=True)
class Step:
    """A server after this reconcile, and what is to be done for it."""

    server: ServerStatus
    events: tuple[Event, ...] = ()
    due: tuple[float, ...] = ()
    delete: tuple[Pod, ...] = ()
    """Pods that give up their nodes, since the server is not whole."""
    lacking: str = ""
    """Name of a pod that has none, with `delete`."""


def run_servers(s: Snapshot, status: JobStatus) -> Change:
    steps = [_next(s, status, server) for server in _wanted(s, status)]
    servers = [step.server for step in steps]
    changes = [Change(set_(status, servers=servers) if servers != status.servers else status)]
    for step in steps:
        changes.append(Change(_without(changes[-1].status, step.delete), step.events, step.due, step.delete))
    released = [step for step in steps if step.delete]
    if released:
        changes.append(Change(changes[-1].status, (_given_up(released),)))
    return Change.all(changes)


def _given_up(released: list[Step]) -> Event:
    """One, also if many servers have lost nodes at the same time."""
    first, pods = released[0], [pod.name for step in released for pod in step.delete]
    if len(released) == 1:
        text = (
            f"{server_name(first.server)} gives up {', '.join(pods)}, and is placed again: {first.lacking} has no node"
        )
        return Event("Warning", reasons.STRANDED, text)
    causes = [f"{server_name(step.server)}: {step.lacking} has no node" for step in released]
    more = f"; and {len(causes) - MOST_NAMED} more" if len(causes) > MOST_NAMED else ""
    text = f"{len(released)} servers give up the nodes of {len(pods)} pods, and are placed again: {'; '.join(causes[:MOST_NAMED])}{more}"
    return Event("Warning", reasons.STRANDED, text)


def _wanted(s: Snapshot, status: JobStatus) -> Iterator[ServerStatus]:
    """The servers that there should be, those that are new included."""
    current = target(s, status)
    leaves = status.is_leaving and not is_open(status.attempt)
    if current is None or status.suspended or status.outcome or status.released_until or leaves:
        return
    known = {(one.role, one.index): one for one in status.servers}
    for one in sorted(current.servers, key=lambda one: (one.role, one.index)):
        new = ServerStatus(role=one.role, index=one.index, ordinals=list(one.ordinals))
        old = known.get((one.role, one.index), new)
        if len(old.ordinals) != len(new.ordinals):
            yield new.model_copy(update={"generation": old.generation})
        else:
            yield old if old.ordinals == new.ordinals else old.model_copy(update={"ordinals": new.ordinals})


def _without(status: JobStatus, released: tuple[Pod, ...]) -> JobStatus:
    """The status without the assignments of these pods."""
    if status.placement is None or not released:
        return status
    gone = {pod.name for pod in released}
    kept = [x for x in status.placement.assignments if x.pod not in gone]
    return set_(status, placement=status.placement.model_copy(update={"assignments": kept}))


def _next(s: Snapshot, status: JobStatus, server: ServerStatus) -> Step:
    events = tuple[Event, ...]()
    end = _end(s, server) if server.parts else None
    if end:
        server, event = _ended(s, server, end)
        events = (event,)
    if server.parts:
        return Step(server, events)
    start = seconds(server.not_before)
    if is_backing_off(start, s.now):
        return Step(server, events, (start,))
    if awaited(s, server) is None:
        return Step(_started(s, server), events)
    step = _released(s, status, server)
    return replace(step, events=events + step.events)


@dataclass(frozen=True, slots=True)
class End:
    """Why a generation cannot go on."""

    reason: str
    """One of reasons.FAILURES."""
    message: str
    part: ServerPart


def _end(s: Snapshot, server: ServerStatus) -> End | None:
    """None: it can go on. A part that has lost the others names no cause, if another one does."""
    pairs = zip(server.parts, server.ordinals, strict=True)
    ends = (_end_of_part(s, server, part, ordinal) for part, ordinal in pairs)
    return min(filter(None, ends), key=lambda end: end.reason == reasons.COLLECTIVE_FAILED, default=None)


def _end_of_part(s: Snapshot, server: ServerStatus, part: ServerPart, ordinal: int) -> End | None:
    """Failures of earlier generations may be reported late, and until the pod serves again."""
    pod, report = s.pod(part), s.report(part)
    reason, message = why_gone(s, part, pod, report)
    if reason:
        return End(reason, message, part)
    if pod is None or pod.deleting:
        return End(reasons.POD_DELETED, f"pod {part.pod} is being deleted", part)
    if pod.ordinal != ordinal:
        successor = names.pod(s.job.name, pod.role, ordinal)
        return End(reasons.POD_DELETED, f"pod {part.pod} gives its place to {successor}", part)
    if report and report.failure and report.failed_generation == server.generation:
        message = failure_sentence(RolloutFailure(pod=part.pod, failure=report.failure))
        return End(BY_KIND[report.failure.kind], message, part)
    return None


def _ended(s: Snapshot, server: ServerStatus, end: End) -> tuple[ServerStatus, Event]:
    """Failures cost a back-off, the loss of a pod costs none: its successor has to start anyway."""
    boot = end.part.boot_id if end.reason in reasons.CONTAINER_ENDED else ""
    news: dict[str, object] = {"parts": [], "started_at": "", "ended_boot": boot}
    if end.reason not in reasons.NOT_COUNTED - reasons.DELAYED:
        stable = s.now - seconds(server.started_at) >= STABLE_SECONDS
        failures = 1 if stable else server.failures + 1
        news |= {"failures": failures, "not_before": stamp(s.now + backoff(s.lifecycle.backoff_seconds, failures))}
    text = f"{server_name(server)} starts again as a whole: {end.message}"
    return server.model_copy(update=news), Event("Warning", reasons.SERVER_RESTARTED, text)


def _started(s: Snapshot, server: ServerStatus) -> ServerStatus:
    parts = [_part(s, pod, rank) for rank, pod in enumerate(_pods(s, server)) if pod]
    news = {"generation": server.generation + 1, "parts": parts, "started_at": stamp(s.now)}
    return server.model_copy(update=news | {"stranded_since": "", "released_until": "", "not_before": ""})


def _part(s: Snapshot, pod: Pod, rank: int) -> ServerPart:
    report = s.report(pod)
    assert report is not None
    return ServerPart(pod=pod.name, pod_uid=pod.uid, boot_id=report.boot_id, address=pod.ip, node_rank=rank)


def _pods(s: Snapshot, server: ServerStatus) -> list[Pod | None]:
    """Its pods, by rank."""
    return [s.at(server.role, ordinal) for ordinal in server.ordinals]


def server_name(server: ServerStatus) -> str:
    """As in `rollout server 1 starts again`. Its name for programs could be that of a pod."""
    return f"{server.role} server {server.index}"


def awaited(s: Snapshot, server: ServerStatus) -> tuple[int, str] | None:
    """Rank of the first pod that keeps the next generation from starting, and why, as the end of a sentence; None: all of them are there."""
    problems = ((rank, _problem(s, server, pod)) for rank, pod in enumerate(_pods(s, server)))
    return next(((rank, problem) for rank, problem in problems if problem), None)


def _problem(s: Snapshot, server: ServerStatus, pod: Pod | None) -> str:
    if pod is None:
        return s.absence(server.role)
    if pod.lost_since is not None:
        return "is on a node that does not answer"
    if pod.deleting:
        return "is being deleted"
    if not pod.node:
        return "has no node"
    if not pod.ip or not pod.running:
        return "does not run yet"
    report = s.report(pod)
    if report is None:
        return "has not reported yet"
    return "restarts" if report.boot_id == server.ended_boot else ""


def unready(s: Snapshot, server: ServerStatus) -> tuple[str, str] | None:
    """Name of the pod that keeps the server from answering, and why, as the end of a sentence; None: it answers."""
    if answering_head(s, server):
        return None
    rank, problem = awaited(s, server) or _loading(s, server)
    return names.pod(s.job.name, server.role, server.ordinals[rank]), problem


def _loading(s: Snapshot, server: ServerStatus) -> tuple[int, str]:
    """Of a server whose pods are all there: rank of one that is not ready. The head answers when the workers of all others are up."""
    later = enumerate(s.pod(part) for part in server.parts[1:])
    rank = next((rank for rank, pod in later if pod and not pod.ready), -1) + 1
    return rank, "has not started its workers yet" if rank else "does not answer yet"


def _released(s: Snapshot, status: JobStatus, server: ServerStatus) -> Step:
    """Gives up the nodes of the pods of a server of which others have had none for strandedSeconds."""
    limit, until = s.lifecycle.stranded_seconds, seconds(server.released_until)
    if is_ahead(until, limit, s.now):
        return Step(server, due=(until,))
    if server.released_until:
        return Step(server.model_copy(update={"released_until": ""}), due=(s.now,))
    pods = _pods(s, server)
    holding = tuple(pod for pod in pods if pod and frees_its_node(s, pod))
    lacking = next((rank for rank, pod in enumerate(pods) if pod is None or not pod.node), None)
    if not holding or lacking is None:
        return Step(server.model_copy(update={"stranded_since": ""}) if server.stranded_since else server)
    if not is_past(seconds(server.stranded_since), s.now):
        server = server.model_copy(update={"stranded_since": stamp(s.now)})
    until = seconds(server.stranded_since) + limit
    if s.now < until:
        return Step(server, due=(until,))
    spec = s.spec_of(status.attempt)
    waits = "" if spec is None or spec.scheduling.facts.assigns_nodes else stamp(s.now + limit)
    released = server.model_copy(update={"stranded_since": "", "released_until": waits})
    return Step(released, (), (s.now,), holding, names.pod(s.job.name, server.role, server.ordinals[lacking]))
