"""What the administrator sets for fields that jobs leave open: the cluster's side of a spec, such as images, volumes and tolerations."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from rljob_api.base import Model
from rljob_api.merging import Completed, merged
from rljob_api.spec.common import (
    Environment,
    EnvironmentSources,
    Image,
    ObjectName,
    PullSecrets,
    Texts,
    Tolerations,
    Volumes,
)
from rljob_api.spec.job import LabelKey, SchedulingSpec

TAKE_LEVELS = ("builtin", "kueue")
"""Backends that read `scheduling.topologyLevels`."""


class SchedulingDefaults(Model):
    """Defaults of spec.scheduling."""

    topology_levels: Annotated[list[LabelKey], Field(max_length=8)] | None = None
    """Labels of nodes, from the widest domain to the narrowest, for jobs whose backend reads them."""


class TemplateDefaults(Model):
    """Defaults of the `template` of every role."""

    tolerations: Tolerations | None = None
    """Kubernetes tolerations, for roles that have none of their own."""
    labels: Texts | None = None
    """Further labels of pods."""
    annotations: Texts | None = None
    """Further annotations of pods."""
    priority_class_name: ObjectName | None = None
    """Name of a Kubernetes PriorityClass, for roles that have none of their own."""


class JobDefaults(Model):
    """What is unset here, and what a job writes itself, is the job's. Maps are merged key by key; of `env`, `imagePullSecrets` and `volumes` a job
    gets the entries whose names and mount paths it does not use itself; other lists are taken whole."""

    image: Image | None = None
    """Image of trainer and rollout pods."""
    image_pull_secrets: PullSecrets | None = None
    """Secrets with which the image is pulled: `{name: NAME}`. They have to exist in the namespaces of jobs."""
    env: Environment | None = None
    """Environment variables of all containers. No secrets: every user of the cluster can read them here."""
    env_from: EnvironmentSources | None = None
    """Kubernetes `envFrom` sources of all containers."""
    volumes: Volumes | None = None
    """Volumes of all pods. What they refer to has to exist in the namespaces of jobs."""
    scheduling: SchedulingDefaults = SchedulingDefaults()
    """Placement of the pods on nodes."""
    template: TemplateDefaults = TemplateDefaults()
    """Pod settings of every role that has pods."""

    def completed(self, spec: Mapping[str, Any]) -> Completed:
        """A raw spec with the defaults for fields that it leaves open, and which of them it took."""
        return merged(dict(spec), self._of(spec), ("spec",))

    def _of(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults for such a spec, as a partial spec."""
        own = self.model_dump(by_alias=True, exclude_none=True, exclude={"scheduling", "template"})
        takes_levels = _section(spec, "scheduling").get("backend", SchedulingSpec().backend) in TAKE_LEVELS
        levels = {"scheduling": self.scheduling.dump()} if takes_levels and self.scheduling.dump() else {}
        return own | levels | (_templates(spec, {"template": self.template.dump()}) if self.template.dump() else {})


def _templates(spec: Mapping[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """A partial spec with `template` in every section that describes pods."""
    rewards = [{"model": template} if _is_gang(reward, "model") else {} for reward in _list(spec, "rewards")]
    lists = {"pools": [template for _ in _list(spec, "pools")], "rewards": rewards}
    return dict.fromkeys(("trainer", *_roles(spec)), template) | {name: found for name, found in lists.items() if found}


def _section(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def _list(spec: Mapping[str, Any], name: str) -> list[Any]:
    found = spec.get(name)
    return found if isinstance(found, list) else []


def _roles(spec: Mapping[str, Any]) -> Iterator[str]:
    """Sections, besides the trainer's, of rollouts and other models that have pods of their own."""
    rollout = _section(spec, "rollout")
    if spec.get("task") in (None, "rl") and rollout.get("placement") in (None, "separate"):
        yield "rollout"
    yield from (name for name in ("critic", "reference") if _is_gang(spec, name))


def _is_gang(spec: Any, name: str) -> bool:
    return isinstance(spec, dict) and bool(_section(spec, name).get("processesPerNode"))
