"""What became of each member of an attempt, from its pod and its report. And the root cause of a failed attempt: the first thing that went wrong, not
what it broke.

When one rank dies, the others lose their collective within a second, and their reports may arrive first. So a cause is provisional until the attempt
ends. A lost pod or container, which explains any broken collective, or an earlier exception replaces it.

Who was earlier is said by the clocks of the pods, which may be wrong. Failures of one attempt are seconds apart, since the first one ends it: a time
that is further from most others is of a wrong clock, and says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import Literal

from rljob_api import names, reasons
from rljob_api.protocol import Failure, Member, Report, Result
from rljob_api.server_group import ServerPart
from rljob_api.status import Attempt, JobStatus
from rljob_api.text import one_line
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_lost, is_stuck
from rljob_operator.model.snapshot import Snapshot

SHOWN_LINES = 20
"""Of what a container wrote last, at most: as many as a Failure holds."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member, now."""

    member: Member
    pod: Pod | None
    state: Literal["alive", "stopped", "gone"]
    result: Result | None = None
    """How the attempt ended there, if `state` is stopped."""
    failure: Failure | None = None
    """Why it failed, or is gone."""
    reason: str = ""
    """Why it is gone: one of reasons.FAILURES."""

    @property
    def ended(self) -> bool:
        return self.state != "alive"


def member_statuses(s: Snapshot, attempt: Attempt) -> list[MemberStatus]:
    return [member_status(s, attempt, m) for m in attempt.members]


def trainers(members: list[MemberStatus]) -> list[MemberStatus]:
    """The members that hold the policy."""
    return [m for m in members if m.member.role == names.ROLE_TRAINER]


def has_finished(members: list[MemberStatus]) -> bool:
    """Whether the job's last step is done and saved: all trainers say so. The gangs of other models only help them."""
    return all(m.result == "succeeded" for m in trainers(members))


def member_status(s: Snapshot, attempt: Attempt, member: Member) -> MemberStatus:
    pod = s.pod(member)
    report = s.report(member)
    reported = _stopped(member, pod, report, attempt.number)
    if reported:
        return reported
    reason, message = why_gone(s, member, pod, report)
    if reason:
        lines = [*pod.last_words[-SHOWN_LINES:]] if pod and reason == reasons.CONTAINER_RESTARTED else []
        failure = Failure(kind="killed", exception=reason, message=message, lines=lines)
        return MemberStatus(member, pod, "gone", failure=failure, reason=reason)
    return MemberStatus(member, pod, "alive")


def _stopped(member: Member, pod: Pod | None, report: Report | None, number: int) -> MemberStatus | None:
    """If the launcher has reported the end of the attempt. That report stands, whatever happens to the pod afterwards."""
    if report is None or report.boot_id != member.boot_id or report.attempt != number or report.state != "stopped":
        return None
    failure = report.failure
    if report.result == "failed" and failure is None:
        failure = Failure(kind="application", message="the launcher named no cause")
    return MemberStatus(member, pod, "stopped", report.result, failure if report.result == "failed" else None)


def on_node(pod: Pod) -> str:
    """` on node NAME`, as a part of a sentence; empty: it is on none."""
    return f" on node {pod.node}" if pod.node else ""


def why_gone(s: Snapshot, member: Member | ServerPart, pod: Pod | None, report: Report | None) -> tuple[str, str]:
    """Reason and message if no process of the member can be running any more; empty: one may be."""
    last = pod or s.failed_pod(member)
    if last is None:
        return reasons.POD_DELETED, f"pod {member.pod} was deleted"
    if is_lost(last, s.lifecycle.node_loss_seconds, s.now):
        return reasons.NODE_LOST, f"the node of pod {last.name} has not answered for {s.lifecycle.node_loss_seconds} s"
    gone = pod is None or last.phase in ("Failed", "Succeeded")
    ended = gone or not last.running
    if ended and last.disrupted:
        return reasons.POD_DISRUPTED, f"pod {last.name}: {last.disrupted}"
    if last.failed:
        return reasons.POD_FAILED, f"the kubelet ended pod {last.name}{on_node(last)}: {last.failed}"
    if gone or (ended and last.deleting):
        return reasons.POD_DELETED, f"pod {last.name} was deleted"
    if is_stuck(last, s.lifecycle.node_loss_seconds, s.now):
        return reasons.POD_STUCK, f"pod {last.name}{on_node(last)} was deleted and does not end"
    if ended or (report and report.boot_id != member.boot_id):
        return _end_of_container(last)
    return "", ""


def _end_of_container(pod: Pod) -> tuple[str, str]:
    if pod.out_of_memory:
        limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "what its node has"
        return reasons.OUT_OF_MEMORY, f"the container{on_node(pod)} needed more memory than {limit}: {pod.exited}"
    return (
        reasons.CONTAINER_RESTARTED,
        f"the container of pod {pod.name} ended: {how_it_ended(pod) or 'no reason given'}",
    )


def how_it_ended(pod: Pod) -> str:
    """Reason, exit code and last line of the container's last life; empty: it has had none."""
    return ": ".join((pod.exited, *pod.last_words[-1:]))


BY_KIND = {
    "application": reasons.APPLICATION_FAILED,
    "configuration": reasons.CONFIGURATION_ERROR,
    "collective": reasons.COLLECTIVE_FAILED,
    "killed": reasons.PROCESS_KILLED,
    "full": reasons.VOLUME_FULL,
}
PROCESS_REASONS = frozenset(BY_KIND.values()) - {reasons.COLLECTIVE_FAILED}
"""Reasons that a process gives for its own end. A broken collective is not one: it only says that another process ended."""
OBSERVED = reasons.FAILURES - frozenset(BY_KIND.values()) - {reasons.OUT_OF_MEMORY}
"""Reasons that the operator gives, in whole sentences."""
APART_SECONDS = 30.0
"""Seconds between failures of one attempt, at most, as far as clocks are right: the first one ends the others, and the attempt is stopped."""
ROLLOUT_PHASES = ("waiting", "generating", "evaluating")
"""Phases in which the trainer waits for its rollouts."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt failed."""

    reason: str
    pod: str
    failure: Failure

    def __str__(self) -> str:
        """One sentence for status.message and events."""
        f = self.failure
        if self.reason in OBSERVED:
            return one_line(f.message)
        where = self.pod + (f" (rank {f.rank})" if f.rank is not None else "")
        return one_line(f"{where}: {f.explanation}" if where else f.explanation)


def recorded_cause(attempt: Attempt) -> Cause | None:
    """The cause that the attempt's status holds."""
    if attempt.failure is None or attempt.reason not in reasons.FAILURES:
        return None
    return Cause(attempt.reason, attempt.failed_pod, attempt.failure)


def root_cause(attempt: Attempt, members: list[MemberStatus]) -> Cause | None:
    """The best explanation so far. None: nothing has failed, or only after the gang was commanded to stop for another reason."""
    known = recorded_cause(attempt)
    if known is None and attempt.command == "stop":
        return None
    causes = [c for c in (_cause(attempt, m) for m in members) if c]
    processes = [c for c in causes if c.reason in PROCESS_REASONS]
    if known and known.reason in PROCESS_REASONS:
        return _earliest([known, *(c for c in processes if c.pod != known.pod)])
    if known and known.reason != reasons.COLLECTIVE_FAILED:
        return known
    gone = [c for c in causes if c.reason not in PROCESS_REASONS and c.reason != reasons.COLLECTIVE_FAILED]
    if gone:
        return gone[0]
    return _earliest(processes) if processes else known or next(iter(causes), None)


def _earliest(causes: Sequence[Cause]) -> Cause:
    """The earliest of those whose clocks agree with most; of two that disagree, the first, which was known before. Unknown times come last."""
    first, *_ = timed = [c for c in causes if c.failure.time] or list(causes)
    times = [c.failure.time for c in timed]
    middle = min(median_low(times), median_high(times), key=lambda time: abs(time - first.failure.time))
    return min((c for c in timed if abs(c.failure.time - middle) <= APART_SECONDS), key=lambda c: c.failure.time)


def _cause(attempt: Attempt, m: MemberStatus) -> Cause | None:
    if m.state == "gone" and m.failure:
        return Cause(m.reason, m.member.pod, m.failure)
    if m.failure:
        return Cause(_reason(m.failure), m.member.pod, m.failure)
    if m.result == "stopped" and attempt.command == "run":
        unasked = Failure(kind="killed", exception="Stopped", message="the launcher stopped the attempt unasked")
        return Cause(reasons.PROCESS_KILLED, m.member.pod, unasked)
    return None


def _reason(failure: Failure) -> str:
    """The launcher calls a killed process by its cause, if that was memory. Its own container lives on, so the kubelet does not."""
    out_of_memory = failure.kind == "killed" and failure.exception == reasons.OUT_OF_MEMORY
    return reasons.OUT_OF_MEMORY if out_of_memory else BY_KIND[failure.kind]


def stall(s: Snapshot, status: JobStatus, attempt: Attempt) -> Cause | None:
    """The failure of an attempt whose heartbeat has not advanced for stallTimeoutSeconds, if so. The observer measures the age of the heartbeat."""
    limit = s.lifecycle.stall_timeout_seconds
    if attempt.command == "stop" or s.heartbeat_age is None or s.heartbeat_age < limit:
        return None
    progress = s.progress_of(attempt)
    phase = progress.phase if progress else "loading"
    role = "rollouts" if phase in ROLLOUT_PHASES else "trainer"
    doing = " ".join([phase, ", ".join(progress.loading) if progress else ""]).strip()
    message = f"no progress for {limit} s while {doing} at step {progress.step if progress else status.progress.step}"
    if role == "rollouts":
        message += f"; the trainer is waiting for its rollouts, of which {status.rollout.ready} answer"
        further = status.asked_besides_rollouts.items()
        message += "".join(f", and {name}, of which {counted.text} do" for name, counted in further)
        message += "".join(
            f", and sandboxes {name}, {sandboxes.text} free" for name, sandboxes in status.environments.items()
        )
        message += _of_server(s)
    elif progress and progress.awaiting:
        message += f": {progress.awaiting}"
    failure = Failure(kind="application", exception=reasons.NO_PROGRESS, message=message, time=s.now)
    return Cause(reasons.NO_PROGRESS, attempt.first.pod if attempt.first and role == "trainer" else "", failure)


def _of_server(s: Snapshot) -> str:
    """The newest failure that a server which does not answer has reported; empty: none has."""
    reports = ((pod, s.report(pod)) for pod in s.servers if not pod.ready)
    failed = [(pod.name, report.failure) for pod, report in reports if report and report.failure]
    pod, failure = max(failed, key=lambda f: f[1].time, default=("", None))
    return f"; {pod}: {failure.sentence}" if failure else ""


def misconfiguration(s: Snapshot, attempt: Attempt) -> Cause | None:
    """The failure of a rollout, or of a pool's server, that reports a wrong configuration while no server of its role answers, if there is one."""
    followers = {part.pod_uid for server in s.status.servers for part in server.parts[1:]}
    answering = {p.role for p in s.servers if p.ready and p.uid not in followers}
    for pod in s.servers if attempt.command != "stop" else ():
        report = s.report(pod)
        if pod.role not in answering and report and report.failure and report.failure.kind == "configuration":
            return Cause(reasons.CONFIGURATION_ERROR, pod.name, report.failure)
    return None
