"""Volcano: pods belong to a PodGroup of the whole gang. Labels and fields are those of Volcano 1.15."""

from rljob_api import names
from rljob_api.quantity import Thousandths, add, exact
from rljob_api.sizing.layout import required_pods
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import Object
from rljob_operator.schedulers.base import PodSettings, Scheduler
from rljob_placement.gang import Demand

VOLCANO = "scheduling.volcano.sh"


class Volcano(Scheduler):
    """A PodGroup may grow: pods beyond its minimum are scheduled one by one."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        annotations = {"scheduling.k8s.io/group-name": names.pod_group(job.name), "volcano.sh/task-spec": role}
        return PodSettings(annotations=annotations)

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """The PodGroup. Its minimum is given by role, too: otherwise rollouts beyond the minimum would count as trainers."""
        members = required_pods(spec)
        wanted = {
            "minMember": sum(members.values()),
            "minTaskMember": {role: count for role, count in members.items() if count},
            "minResources": _total(spec, members),
            "queue": spec.scheduling.queue,
            "priorityClassName": spec.trainer.template.priority_class_name,
        }
        group = {
            "apiVersion": f"{VOLCANO}/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": names.pod_group(job.name)},
            "spec": {k: v for k, v in wanted.items() if v},
        }
        return [group]


def _total(spec: RLJobSpec, members: dict[str, int]) -> dict[str, str]:
    """Sum of the requests of these pods, as quantities. `members`: number of pods by role."""
    total: Thousandths = {}
    for role, count in members.items():
        total = add(total, {k: v * count for k, v in Demand.of(spec, role).requests.items() if k != "pods"})
    return {name: exact(amount) for name, amount in total.items()}
