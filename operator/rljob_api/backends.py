"""What is known of each scheduler backend, the values of `spec.scheduling.backend`. Its code is one file of rljob_operator/schedulers/."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

BackendName = Literal["builtin", "none", "kueue", "volcano", "native", "kai"]


class ObjectKind(NamedTuple):
    """A kind of objects that the operator makes for a backend. Not every cluster has it, so nobody watches it."""

    group: str
    version: str
    name: str
    plural: str

    def __str__(self) -> str:
        """As kubectl tells kinds of one name apart."""
        return f"{self.name}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One backend."""

    fields: frozenset[str] = frozenset()
    """Fields of spec.scheduling that it reads, by their YAML names; the others are refused. It takes no job without a `queue` if it reads that."""
    queue_is_label: bool = False
    """Whether the queue's name is the value of a label of pods."""
    pod_keys: frozenset[str] = frozenset()
    """Labels and annotations that the operator sets on pods for it."""
    scheduler_name: str = ""
    """`schedulerName` of the pods where spec.scheduling has none; empty: the cluster's default scheduler."""
    assigns_nodes: bool = False
    """Whether the operator chooses the nodes: pods are gated until status.placement has their assignments."""
    scalable: bool = True
    """Whether rollouts may come and go while an attempt runs."""
    finalizer: str = ""
    """With which its controller keeps the pods of a gang. The operator takes it from those that were deleted and have ended."""
    starts_whole_gangs: bool = False
    """Whether it starts the pods of a gang together or not at all, also when all of them have been replaced."""
    kinds: tuple[ObjectKind, ...] = ()
    """Kinds of the objects that are created for it. From here the operator has its rights over them (charts/rljob/files/backends.yaml)."""


BACKENDS: Mapping[BackendName, Backend] = {
    "builtin": Backend(
        fields=frozenset({"preemptionPolicy", "priority", "requiredLevel", "topologyLevels"}),
        assigns_nodes=True,
        starts_whole_gangs=True,
    ),
    "none": Backend(),
    "kueue": Backend(
        fields=frozenset({"queue", "requiredLevel", "topologyLevels"}),
        queue_is_label=True,
        pod_keys=frozenset(
            f"kueue.x-k8s.io/{key}"
            for key in (
                *("queue-name", "pod-group-name", "pod-group-total-count", "pod-group-serving"),
                *("podset-preferred-topology", "podset-required-topology", "pod-group-pod-index-label"),
                *("podset-slice-required-topology", "podset-slice-size"),
            )
        ),
        finalizer="kueue.x-k8s.io/managed",
        scalable=False,  # a pod group keeps the number of pods that it was admitted with
    ),
    "volcano": Backend(
        fields=frozenset({"queue"}),
        pod_keys=frozenset({"scheduling.k8s.io/group-name", "volcano.sh/task-spec"}),
        scheduler_name="volcano",
        starts_whole_gangs=True,
        kinds=(ObjectKind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),),
    ),
    "native": Backend(
        kinds=(ObjectKind("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),),
    ),
    "kai": Backend(
        fields=frozenset({"queue"}),
        queue_is_label=True,
        pod_keys=frozenset(
            {
                *("kai.scheduler/queue", "kai.scheduler/subgroup-name", "kai.scheduler/skip-podgrouper"),
                "pod-group-name",
            }
        ),
        scheduler_name="kai-scheduler",
        starts_whole_gangs=True,
        kinds=(ObjectKind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),),
    ),
}


def readers_of(field: str) -> tuple[BackendName, ...]:
    """Backends that read a field of spec.scheduling."""
    return tuple(name for name, backend in BACKENDS.items() if field in backend.fields)


LABELED = tuple(name for name, backend in BACKENDS.items() if backend.queue_is_label)
"""Backends for which the queue's name is the value of a label."""
POD_KEYS = frozenset[str]().union(*(backend.pod_keys for backend in BACKENDS.values()))
"""Labels and annotations of pods by which backends know their groups."""
FINALIZERS = frozenset(backend.finalizer for backend in BACKENDS.values() if backend.finalizer)
WITHOUT_SCHEDULER = tuple(name for name, backend in BACKENDS.items() if not backend.scheduler_name)
"""Backends whose pods the cluster's default scheduler binds."""
KINDS = tuple(kind for backend in BACKENDS.values() for kind in backend.kinds)
