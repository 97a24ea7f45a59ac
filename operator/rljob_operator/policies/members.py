"""What became of each member of an attempt, from its pod and its report."""

from dataclasses import dataclass
from typing import Literal

from rljob_api import names, reasons
from rljob_api.protocol import Failure, Member, Report, Result
from rljob_api.status import Attempt
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_lost, is_stuck
from rljob_operator.model.snapshot import Snapshot


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
    reason, message = _gone(s, member, pod, report)
    if reason:
        failure = Failure(kind="killed", exception=reason, message=message)
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


def _gone(s: Snapshot, member: Member, pod: Pod | None, report: Report | None) -> tuple[str, str]:
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
    return reasons.CONTAINER_RESTARTED, f"the container of pod {pod.name} ended: {pod.exited or 'no reason given'}"
