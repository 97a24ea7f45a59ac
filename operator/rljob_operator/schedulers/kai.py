"""KAI Scheduler: pods belong to a PodGroup of the whole gang, with a subgroup for each role. Labels and fields are those of the "External PodGroups"
of KAI 0.15 (docs/batch/README.md of its repository)."""

from rljob_api import names
from rljob_api.sizing.layout import required_pods
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import Object
from rljob_operator.schedulers.base import PodSettings, Scheduler

KAI = "kai.scheduler"


class Kai(Scheduler):
    """`skip-podgrouper` keeps KAI from making a group of its own for each StatefulSet, which would be a gang of one pod."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        queue = {f"{KAI}/queue": spec.scheduling.queue or ""}
        if not required_pods(spec)[role]:  # each of its pods may come and go, and is a gang of one
            return PodSettings(queue)
        labels = queue | {f"{KAI}/subgroup-name": role}
        annotations = {"pod-group-name": names.pod_group(job.name), f"{KAI}/skip-podgrouper": "true"}
        return PodSettings(labels, annotations)

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """The PodGroup. Its minimum is given by role, too: otherwise rollouts beyond the minimum would count as trainers."""
        members = required_pods(spec)
        wanted = {
            "minMember": sum(members.values()),
            "subGroups": [{"name": role, "minMember": count} for role, count in members.items() if count],
            "queue": spec.scheduling.queue,
            "priorityClassName": spec.trainer.template.priority_class_name,
        }
        group = {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": names.pod_group(job.name)},
            "spec": {k: v for k, v in wanted.items() if v},
        }
        return [group]
