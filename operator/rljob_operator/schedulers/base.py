"""The interface of scheduler backends. The rest of the operator uses it and never compares a backend's name."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Additions to a pod template."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    """Fields of the pod's spec."""


class Scheduler:
    """One backend. Pure: its answers follow from the job alone. The defaults add nothing."""

    fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of spec.scheduling that the backend reads, by their YAML names. Validation refuses the others."""
    scalable: ClassVar[bool] = True
    """Whether rollouts may come and go while an attempt runs."""
    starts_whole_gangs: ClassVar[bool] = False
    """Whether it starts the pods of a gang together or not at all, also when all of them have been replaced."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        """What to add to the pod template of a role."""
        return PodSettings()

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """Objects to create alongside the StatefulSets: apiVersion, kind, metadata.name and body. Labels and owner are added by `render`."""
        return []
