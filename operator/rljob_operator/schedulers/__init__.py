"""Scheduler backends: one file per value of `spec.scheduling.backend`, each with the interface of `base.Scheduler`."""

from collections.abc import Mapping

from rljob_api.backends import BackendName
from rljob_api.spec import RLJobSpec
from rljob_operator.schedulers.base import Scheduler
from rljob_operator.schedulers.kai import Kai
from rljob_operator.schedulers.kueue import Kueue
from rljob_operator.schedulers.native import Native
from rljob_operator.schedulers.volcano import Volcano

SCHEDULERS: Mapping[BackendName, Scheduler] = {
    "builtin": Scheduler(),
    "none": Scheduler(),
    "kueue": Kueue(),
    "volcano": Volcano(),
    "native": Native(),
    "kai": Kai(),
}


def scheduler_of(spec: RLJobSpec) -> Scheduler:
    return SCHEDULERS[spec.scheduling.backend]
