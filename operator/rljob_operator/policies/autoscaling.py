"""How many pods run an agent or a reward function, where `autoscaling` of the spec decides: as many as the driver says that their calls need.

There are more at once, and fewer only when fewer have been enough for `downSeconds`. The driver watches that, so that nothing is forgotten with an
operator; a driver that has just begun does not know, and the number stays. A StatefulSet removes the highest ordinal first. The driver fills the
lowest ones first, and a pod in which a call runs stays.
"""

from rljob_api import reasons
from rljob_api.protocol import WorkerLoad
from rljob_api.spec.processes import Workers
from rljob_api.status import JobStatus
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, set_


def scale_workers(s: Snapshot, status: JobStatus) -> Change:
    spec, before = s.spec_of(status.attempt), status.worker_replicas
    if spec is None:
        return Change(status)
    loads, after = _loads(s, status), dict[str, int]()
    if not (status.suspended or status.outcome):
        scaled = {role: workers for role, workers in spec.workers.items() if workers.autoscaling}
        after = {role: wanted(workers, before.get(role, 0), loads.get(role)) for role, workers in scaled.items()}
    if after == before:
        return Change(status)
    events = [
        Event("Normal", reasons.WORKERS_SCALED, f"{role}: {before[role]} to {pods} pods, for {loads[role].calls} calls")
        for role, pods in after.items()
        if role in loads and before.get(role, pods) != pods
    ]
    return Change(set_(status, worker_replicas=after), tuple(events))


def wanted(workers: Workers, now: int, load: WorkerLoad | None) -> int:
    """The number of pods that there should be. `now`: that there should have been until now. `load`: None, nobody has reported any."""
    if load is None:
        return workers.bounded(now)
    return workers.bounded(max(load.needed, now if load.enough is None else min(now, load.enough)))


def _loads(s: Snapshot, status: JobStatus) -> dict[str, WorkerLoad]:
    """By role, as the open attempt's driver has counted last."""
    progress = s.progress_of(status.attempt) if is_open(status.attempt) else None
    return progress.workers if progress else {}
