"""What every scheduler answers. The rest of the operator asks here and never compares a backend's name."""

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
    """One backend. Pure: what it wants follows from the job alone. The defaults ask for nothing."""

    fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of spec.scheduling that it reads, by their YAML names. Validation refuses the others."""
    scalable: ClassVar[bool] = True
    """Whether rollouts may come and go while an attempt runs."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        """What to add to the pod template of a role."""
        return PodSettings()

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """Objects to create alongside the StatefulSets: apiVersion, kind, metadata.name and body. Labels and owner are added by `render`."""
        return []
