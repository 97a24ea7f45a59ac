"""What becomes of a job on one machine: the operator's decisions, as far as processes without a cluster need them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rljob_api.protocol import Command, Failure, Member, Report
from rljob_trainer import failure

LOST = Failure(kind="killed", exception="LauncherLost", message="the launcher ended")


@dataclass(frozen=True)
class LocalState:
    """The current attempt and what led to it."""

    attempt: int = 0
    members: tuple[Member, ...] = ()
    command: Command = "stop"
    cause: Failure | None = None
    """Why the current attempt was stopped."""
    failures: int = 0
    """Attempts that failed before."""


@dataclass(frozen=True)
class End:
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
    """Reports of each pool's servers."""


def advance(state: LocalState, seen: Seen, wanted: Command, max_restarts: int) -> LocalState | End:
    """`wanted`: run, or what the user asked for since: drain, stop."""
    if failed := _misconfigured(seen):
        return End(1, failed.message)
    if state.attempt == 0:
        return _open(state, seen) if wanted == "run" else End(130, "interrupted before it began")
    reports = [_report(seen, member) for member in state.members]
    if all(_ended(report, state.attempt) for report in reports):
        return _closed(state, seen, reports, wanted, max_restarts)
    if cause := _cause(state, reports):
        return replace(state, command="stop", cause=cause)
    return replace(state, command=_stronger(state.command, wanted))


def _open(state: LocalState, seen: Seen) -> LocalState:
    """The next attempt, as soon as every launcher has reported."""
    reports = [report for report in seen.trainers.values() if report]
    if len(reports) < len(seen.trainers):
        return state
    members = tuple(
        Member(pod=r.pod, pod_uid=r.pod_uid, boot_id=r.boot_id, node_rank=i, address=seen.address)
        for i, r in enumerate(reports)
    )
    return LocalState(state.attempt + 1, members, "run", None, state.failures)


def _closed(
    state: LocalState, seen: Seen, reports: list[Report | None], wanted: Command, max_restarts: int
) -> LocalState | End:
    if all(report and report.result == "succeeded" for report in reports):
        return End(0, "succeeded")
    cause = _cause(state, reports)
    if wanted != "run":
        return End(130, "interrupted" + (f": {describe(cause)}" if cause else "; what was saved is complete"))
    cause = cause or Failure(kind="application", message="the attempt ended unasked")
    if cause.kind == "configuration":
        return End(1, cause.message)
    if state.failures >= max_restarts:
        return End(
            1, f"attempt {state.attempt} failed, and spec.lifecycle.maxRestarts is {max_restarts}: {describe(cause)}"
        )
    opened = _open(LocalState(state.attempt, failures=state.failures + 1), seen)
    return opened if opened.attempt > state.attempt else state


def _report(seen: Seen, member: Member) -> Report | None:
    """The member's own report; None when its boot is gone."""
    report = seen.trainers.get(member.pod)
    return report if report and report.boot_id == member.boot_id else None


def _ended(report: Report | None, attempt: int) -> bool:
    return report is None or (report.attempt == attempt and report.state == "stopped")


def _cause(state: LocalState, reports: list[Report | None]) -> Failure | None:
    """The best explanation so far. A launcher that is gone explains any broken collective."""
    failures = [r.failure or LOST for r in reports if r and r.attempt == state.attempt and r.result == "failed"]
    failures += [LOST for r in reports if r is None]
    return failure.first([*failures, *([state.cause] if state.cause else [])])


def _misconfigured(seen: Seen) -> Failure | None:
    reports = [report for servers in (seen.rollouts, *seen.pools.values()) for report in servers.values()]
    return failure.first([r.failure for r in reports if r and r.failure and r.failure.kind == "configuration"])


def _stronger(now: Command, wanted: Command) -> Command:
    order: tuple[Command, ...] = ("run", "drain", "stop")
    return max(now, wanted, key=order.index)


def describe(cause: Failure) -> str:
    """One sentence."""
    where = f"rank {cause.rank}: " if cause.rank is not None else ""
    return where + ": ".join(text for text in (cause.exception, cause.message) if text)
