"""What the `builtin` scheduler wants of pods: a gate, which is removed when the pod's node has been chosen."""

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.schedulers.base import PodSettings, Scheduler


class Builtin(Scheduler):
    """Chooses nodes itself: see the other modules of this package."""

    fields = frozenset({"priority", "topologyLevels"})

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        return PodSettings(pod={"schedulingGates": [{"name": names.GATE}]})
