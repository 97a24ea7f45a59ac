"""How an attempt ended on this pod. Pure."""

from collections.abc import Iterable

from rljob_api.protocol import Failure, Result
from rljob_trainer import failure


def conclude(
    outcome: Result | None, stopped: bool, failures: Iterable[Failure], now: float
) -> tuple[Result, Failure | None]:
    """`outcome`: what the ranks wrote, when all of them ended with 0. `stopped`: the operator's word came before any end of ours.

    `failures`: what our processes said before we killed any. When we were stopped, those who had lost a peer by then say nothing new.
    `now`: seconds since the epoch.
    """
    if outcome:
        return outcome, None
    cause = failure.first(failures)
    if stopped and (cause is None or cause.kind == "collective"):
        return "stopped", None
    return "failed", cause or Failure(kind="application", message="the ranks ended without an outcome", time=now)
