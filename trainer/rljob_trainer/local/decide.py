"""What becomes of a job on one machine: the operator's decisions, as far as processes without a cluster need them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rljob_api import names
from rljob_api.protocol import Command, Failure, Member, Report
from rljob_trainer import failure

UNASKED = Failure(kind="application", message="the attempt ended unasked")
LOST = Failure(kind="killed", exception="LauncherLost", message="the launcher ended")


@dataclass(frozen=True)
class LocalState:
    """The current attempt and what led to it."""

    attempt: int = 0
    members: tuple[Member, ...] = ()
    command: Command = "stop"
    cause: Failure | None = None
    """Why the current attempt was stopped."""
    culprit: str = names.ROLE_TRAINER
    """Role of the pod that said so."""
    failures: int = 0
    """Attempts that failed before."""
    failed: str = ""
    """Why the last one of them did."""
    before: int = 0
    """The last attempt of earlier runs in the same directory."""


@dataclass(frozen=True)
class JobEnd:
    """The job is over."""

    code: int
    message: str


@dataclass(frozen=True)
class Seen:
    """The latest reports by pod, None where there is none yet; trainers in the order of their node ranks."""

    trainers: Mapping[str, Report | None]
    rollouts: Mapping[str, Report | None]
    address: str
    """Of this machine, on which all of them are."""
    pools: Mapping[str, Mapping[str, Report | None]] = field(default_factory=dict)
    """Reports of each pool's servers, and of workers."""
    gangs: Mapping[str, Mapping[str, Report | None]] = field(default_factory=dict)
    """Of further models on gangs of their own, by role, as `trainers`."""

    @property
    def servers(self) -> dict[str, Report | None]:
        """Reports of all pods of servers."""
        return {pod: report for reports in (self.rollouts, *self.pools.values()) for pod, report in reports.items()}

    @property
    def launchers(self) -> dict[str, Mapping[str, Report | None]]:
        """Of all gangs, by role."""
        return {names.ROLE_TRAINER: self.trainers, **self.gangs}


def advance(state: LocalState, seen: Seen, wanted: Command, max_restarts: int) -> LocalState | JobEnd:
    """`wanted`: run, or what the user asked for since: drain, stop."""
    failed = _misconfigured(seen)
    if failed:
        return JobEnd(1, failed.message)
    if state.attempt == 0:
        return _open(state, seen) if wanted == "run" else JobEnd(130, "interrupted before it began")
    reports = [_report(seen, member) for member in state.members]
    if all(_ended(report, state.attempt) for report in reports):
        return _closed(state, seen, reports, wanted, max_restarts)
    cause = _cause(state, reports)
    if cause:
        return replace(state, command="stop", cause=cause[1], culprit=cause[0])
    # only the trainers: nobody asks the other gangs for anything once these have ended
    over = all(_ended(report, state.attempt) for report in _trainers(state, reports))
    return replace(state, command=_stronger(state.command, "stop" if over else wanted))


def _open(state: LocalState, seen: Seen) -> LocalState:
    """The next attempt, as soon as every launcher has reported."""
    launchers = [(role, i, report) for role, gang in seen.launchers.items() for i, report in enumerate(gang.values())]
    if any(report is None for _, _, report in launchers):
        return state
    members = tuple(
        Member(pod=r.pod, pod_uid=r.pod_uid, boot_id=r.boot_id, node_rank=i, address=seen.address, role=role)
        for role, i, r in launchers
        if r
    )
    attempt = max(state.attempt, state.before) + 1
    return LocalState(attempt, members, "run", failures=state.failures, failed=state.failed)


def _closed(
    state: LocalState, seen: Seen, reports: list[Report | None], wanted: Command, max_restarts: int
) -> LocalState | JobEnd:
    if all(report and report.result == "succeeded" for report in _trainers(state, reports)):
        return JobEnd(0, "succeeded")
    cause_of_role = _cause(state, reports)
    if wanted != "run":
        return JobEnd(
            130, "interrupted" + (f": {describe(*cause_of_role)}" if cause_of_role else "; what was saved is complete")
        )
    role, cause = cause_of_role or (names.ROLE_TRAINER, UNASKED)
    if cause.kind == "configuration":
        return JobEnd(1, cause.message)
    why = describe(role, cause)
    if state.failures >= max_restarts:
        return JobEnd(1, f"attempt {state.attempt} failed, and spec.lifecycle.maxRestarts is {max_restarts}: {why}")
    opened = _open(LocalState(state.attempt, failures=state.failures + 1, failed=why), seen)
    return opened if opened.attempt > state.attempt else state


def _report(seen: Seen, member: Member) -> Report | None:
    """The member's own report; None when its boot is gone."""
    report = seen.launchers[member.role].get(member.pod)
    return report if report and report.boot_id == member.boot_id else None


def _trainers(state: LocalState, reports: list[Report | None]) -> list[Report | None]:
    return [r for m, r in zip(state.members, reports, strict=True) if m.role == names.ROLE_TRAINER]


def _ended(report: Report | None, attempt: int) -> bool:
    return report is None or (report.attempt == attempt and report.state == "stopped")


def _cause(state: LocalState, reports: list[Report | None]) -> tuple[str, Failure] | None:
    """The best explanation so far, and the role of who gives it. A launcher that is gone explains any broken collective."""
    by_role = list(zip((member.role for member in state.members), reports, strict=True))
    failed = [(role, r) for role, r in by_role if r and r.attempt == state.attempt and r.result == "failed"]
    said = [(role, r.failure or LOST) for role, r in failed]
    gone = [(role, LOST) for role, r in by_role if r is None]
    before = [(state.culprit, state.cause)] if state.cause else []
    failures = [*said, *gone, *before]
    first = failure.first(why for _, why in failures)
    return next((each for each in failures if each[1] is first), None)


def _misconfigured(seen: Seen) -> Failure | None:
    reports = [report for servers in (seen.rollouts, *seen.pools.values()) for report in servers.values()]
    return failure.first([r.failure for r in reports if r and r.failure and r.failure.kind == "configuration"])


def _stronger(now: Command, wanted: Command) -> Command:
    order: tuple[Command, ...] = ("run", "drain", "stop")
    return max(now, wanted, key=order.index)


def describe(role: str, cause: Failure) -> str:
    """One sentence. `role`: of the pod that said so."""
    rank = [] if cause.rank is None else [f"rank {cause.rank}"]
    where = " ".join([*([] if role == names.ROLE_TRAINER else [role]), *rank])
    return ": ".join(text for text in (where, cause.sentence) if text)
