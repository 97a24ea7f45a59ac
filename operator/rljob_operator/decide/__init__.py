"""The next status of a job, as a pure function of what was observed. One file per policy."""

from dataclasses import dataclass

from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.decide.attempt import advance
from rljob_operator.decide.change import Binding, Event, Policy
from rljob_operator.decide.deadlines import collect, expire, wait
from rljob_operator.decide.describe import describe
from rljob_operator.decide.evict import evict
from rljob_operator.decide.opening import open_
from rljob_operator.decide.place import place
from rljob_operator.decide.postponed import postpone
from rljob_operator.decide.progress import record
from rljob_operator.decide.request import consume
from rljob_operator.decide.restart import account
from rljob_operator.decide.success import finish
from rljob_operator.decide.suspend import expire_override, release
from rljob_operator.model.snapshot import Snapshot

POLICIES: tuple[Policy, ...] = (
    consume,  # what a user asked for, once
    expire_override,
    advance,  # the open attempt: drain, stop, close
    record,  # rank 0's progress, complete when the attempt has just closed
    account,  # if it failed: what that costs
    finish,  # if it succeeded: the end
    expire,  # if it ran for too long: the end
    release,  # pods back, or wanted again
    place,  # seats for pods, before any is released to its node
    open_,  # the next attempt
    wait,  # if it does not open for too long: the end
    collect,  # children of a job that has ended
    evict,  # pods that stand in its way
    postpone,  # a spec that changed too late for this attempt
    describe,  # for people and tools; nothing above reads it
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write, in this order: the status, the children that `render` makes of it, deletions, events."""

    status: JobStatus
    events: tuple[Event, ...] = ()
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    bind: tuple[Binding, ...] = ()
    requeue_after: float | None = None
    """Seconds; None: nothing is due without a change."""


def decide(s: Snapshot) -> Decision:
    status = s.status
    events: tuple[Event, ...] = ()
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    bind: tuple[Binding, ...] = ()
    due: tuple[float, ...] = ()
    for policy in POLICIES:
        change = policy(s, status)
        status, events = change.status, events + change.events
        delete, force = delete + change.delete, force + change.force
        bind, due = bind + change.bind, due + change.due
    return Decision(status, events, delete, force, bind, max(0.0, min(due) - s.now) if due else None)
