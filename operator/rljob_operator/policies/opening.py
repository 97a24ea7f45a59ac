"""Opens an attempt when every pod of every gang exists, is idle and has reported its boot. All of them then start together."""

from collections.abc import Iterator, Sequence

from rljob_api import names, reasons
from rljob_api.protocol import Member
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_held, target
from rljob_operator.model.snapshot import Snapshot, Target, is_open
from rljob_operator.policies.causes import member_status
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.nodes import are_judged, leaving_problem
from rljob_operator.render.template import newest_hashes
from rljob_operator.times import is_backing_off, seconds, stamp

MOST_NAMED = 3
"""Pods that stand in and are named in the event."""


def open_attempt(s: Snapshot, status: JobStatus) -> Change:
    following = next_target(s, status)
    if not may_open(s, status) or following is None:
        return Change(status)
    start = seconds(status.restarts.not_before)
    if is_backing_off(start, s.now):
        return Change(status, due=(start,))
    if not are_judged(s, status) or any(opening_problems(s, status)):
        return Change(status)
    members = list[Member]()
    for role, ordinals in following.members.items():
        pods = [pod for pod in s.of(role) if pod.ordinal in ordinals]
        ranked = _ranks(status, pods)
        if ranked is None:
            return Change(status, due=(s.now,))
        members += [_member(s, pod, rank) for pod, rank in zip(pods, ranked, strict=True)]
    attempt = Attempt(
        number=status.attempt.number + 1 if status.attempt else 1,
        members=members,
        resume_step=status.resume_step,
        saved_step=status.checkpoint.latest.step if status.checkpoint.latest else None,
        generation=s.job.generation,
        started_at=stamp(s.now),
    )
    count = f"{len(members)} pod{'' if len(members) == 1 else 's'}"
    message = f"attempt {attempt.number} starts on {count} {resume_point(status)}{_stand_ins(status, attempt)}"
    return Change(set_(status, attempt=attempt), (Event("Normal", reasons.ATTEMPT_OPENED, message),))


def next_target(s: Snapshot, status: JobStatus) -> Target | None:
    """The pods of the next attempt; None: the job's spec is not valid, or an attempt is open."""
    return None if is_open(status.attempt) else target(s, status)


def may_open(s: Snapshot, status: JobStatus) -> bool:
    return awaits_attempt(s, status) and not s.lacks_children


def awaits_attempt(s: Snapshot, status: JobStatus) -> bool:
    """Whether the job wants its next attempt."""
    finished = status.outcome or status.suspended or status.is_leaving
    return s.spec is not None and not finished and not is_open(status.attempt)


def opening_problems(s: Snapshot, status: JobStatus) -> Iterator[str]:
    """What keeps an attempt from opening, pod by pod. Servers and spares need not be ready. But one with an outdated template would not be replaced
    while an attempt is open, so it has to go first."""
    following = next_target(s, status)
    if following is None:
        return
    newest, members = newest_hashes(s, following.spec, status), following.members
    for role, ordinals in members.items():
        yield from _of_gang(s, status, role, following.ordinals[role], len(ordinals), newest[role])
    others = (p for p in outdated(s, following.spec, status) if p.ordinal not in members.get(p.role, ()))
    yield from (f"{pod.name} has an outdated template" for pod in others)


def _of_gang(s: Snapshot, status: JobStatus, role: str, ordinals: list[int], size: int, newest: str) -> Iterator[str]:
    """Problems of one gang. `ordinals`: those of its members, and then of its spares; `size`: number of members; `newest`: hash of the template
    that its pods should have."""
    members, last = ordinals[:size], max(ordinals)  # the others up to the last one stand by
    pods = {
        p.ordinal: p
        for p in s.of(role)
        if (p.ordinal in members or p.ordinal > last) and not is_held(p, s.lifecycle.node_loss_seconds, s.now)
    }
    for ordinal in members:
        name = names.pod(s.job.name, role, ordinal)
        pod = pods.pop(ordinal, None)
        problem = _problem(s, status, pod, newest) if pod else s.absence(role)
        if problem:
            yield f"{name} {problem}"
    yield from (f"{pod.name} is one too many" for pod in pods.values())


def outdated(s: Snapshot, spec: RLJobSpec, status: JobStatus) -> tuple[Pod, ...]:
    """Pods whose template differs from the spec's, without those that are being deleted."""
    newest = newest_hashes(s, spec, status)
    return tuple(p for p in s.pods if not p.deleting and p.template_hash != newest.get(p.role, p.template_hash))


def _ranks(status: JobStatus, pods: Sequence[Pod]) -> Sequence[int] | None:
    """Node ranks of a gang's pods, given in the order of ordinals, in the next attempt: those of their assignments, or that order, if nobody assigns
    them or there can be no new plan. None: a spare stands in, and the next reconcile assigns them."""
    assigned = {x.pod: x.rank for x in status.placement.assignments} if status.placement else {}
    planned = [assigned.get(pod.name, place) for place, pod in enumerate(pods)]
    known = [rank for rank in planned if rank is not None]
    if len(set(known)) == len(pods):
        return known
    return range(len(pods)) if status.placement and status.placement.problem else None


def _stand_ins(status: JobStatus, attempt: Attempt) -> str:
    """Which pods are new in this attempt, as the end of a sentence; empty: none, or it is the first."""
    before = {m.pod for m in status.attempt.members} if status.attempt else {m.pod for m in attempt.members}
    new = [m.pod for m in attempt.members if m.pod not in before]
    more = f" and {len(new) - MOST_NAMED} more" if new[MOST_NAMED:] else ""
    return f"; {', '.join(new[:MOST_NAMED])}{more} {'stands' if len(new) == 1 else 'stand'} in" if new else ""


def _problem(s: Snapshot, status: JobStatus, pod: Pod, newest: str) -> str:
    report = s.report(pod)
    if pod.lost_since is not None:
        return "is on a node that does not answer"
    if pod.deleting:
        return "is being deleted"
    if s.has_lost_account(pod):
        return "has a token of a ServiceAccount that was deleted"
    if pod.template_hash != newest:
        return "has an outdated template"
    others = [gate for gate in pod.gates if gate != names.GATE]
    if others:
        return f"is held back by {' and '.join(others)}"
    if not pod.ip or not pod.running:
        return "does not run yet"
    if report is None:
        return "has not reported yet"
    if report.state == "running":
        return f"still runs attempt {report.attempt}"
    return "restarts" if report.boot_id in _dead_boots(s, status) else leaving_problem(s, status, pod)


def _dead_boots(s: Snapshot, status: JobStatus) -> set[str]:
    """Boots that ended with their container. Until it reports again, the pod's report is still that of the dead boot. A boot that has reported the
    end of the attempt has outlived it."""
    a = status.attempt
    if a is None or a.reason not in reasons.CONTAINER_ENDED:
        return set()
    return {m.boot_id for m in a.members if m.pod == a.failed_pod and member_status(s, a, m).state != "stopped"}


def _member(s: Snapshot, pod: Pod, node_rank: int) -> Member:
    report = s.report(pod)
    assert report is not None
    return Member(
        pod=pod.name,
        pod_uid=pod.uid,
        boot_id=report.boot_id,
        node_rank=node_rank,
        address=pod.ip,
        node=pod.node,
        role=pod.role,
    )


def resume_point(status: JobStatus) -> str:
    """Where the next attempt will start, as the end of a sentence."""
    if status.resume_step == 0:
        return "from the initial weights"
    if status.resume_step is not None:
        return f"from step {status.resume_step}"
    latest = status.checkpoint.latest
    return f"at the checkpoint of step {latest.step}" if latest else "without a checkpoint"
