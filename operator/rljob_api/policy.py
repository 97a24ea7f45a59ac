"""What the administrator sets for all jobs: the defaults and limits of their specs, and which nodes they leave."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from rljob_api import names
from rljob_api.backends import WITHOUT_SCHEDULER, readers_of
from rljob_api.base import Model
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.pod_patch import NO_PATCH, PodPatch
from rljob_api.rules import ValidationResult, Violation, validate
from rljob_api.rules.scheduling import size_violations
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import (
    MAX_ID,
    MOST_PODS,
    DnsName,
    EnvironmentSources,
    EnvVars,
    Id,
    ImageName,
    ObjectName,
    PodSecurity,
    PullSecrets,
    StringMap,
    Tolerations,
    VolumeList,
)
from rljob_api.spec.run import LabelKey, SchedulingSpec
from rljob_api.type_errors import path_of

FieldPath = tuple[str | int, ...]
"""Keys and indices from the root of the object."""
CLAIMS = ("name", "mountPath")
"""Fields that identify an entry of a list: a default is left out if the job has an entry with the same value."""
SECTIONS = ("pools", "rewards", "environments")
"""Lists whose entries are sections of the spec: each entry of the object gets its own defaults."""
NAMED = ("env", "imagePullSecrets", "volumes")
"""Lists of named entries: the object also gets the defaults whose names it does not use itself."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A value of a spec with defaults put in."""

    value: Any
    taken: dict[str, Any] = field(default_factory=dict)
    """The defaults that were put in, by their path in the spec."""


def merged(given: Any, default: Any, at: FieldPath) -> Completed:
    """`given` with the defaults filled in. An empty list counts as left open, since the API server adds one where there is none. A value of another
    type than the default is kept: validation says what is wrong with it."""
    if given is None or given == []:
        return Completed(default, dict(_leaves(default, at)))
    if isinstance(given, dict) and isinstance(default, dict):
        parts = {key: merged(given.get(key), value, (*at, key)) for key, value in default.items()}
        return Completed(given | {k: p.value for k, p in parts.items()}, _all_taken(parts.values()))
    if isinstance(given, list) and isinstance(default, list):
        return _lists(given, default, at)
    return Completed(given)


def _lists(given: list[Any], default: list[Any], at: FieldPath) -> Completed:
    if at[-1] in SECTIONS:
        parts = [merged(g, d, (*at, i)) for i, (g, d) in enumerate(zip(given, default, strict=True))]
        return Completed([part.value for part in parts], _all_taken(parts))
    if at[-1] not in NAMED:
        return Completed(given)
    added = [entry for entry in default if not any(_claimed(entry, other) for other in given)]
    return Completed([*given, *added], {path_of((*at, i)): entry for i, entry in enumerate(added, len(given))})


def _claimed(default: dict[str, Any], given: Any) -> bool:
    return isinstance(given, dict) and any(key in default and default[key] == given.get(key) for key in CLAIMS)


def _leaves(value: Any, at: FieldPath) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        yield from ((path_of((*at, i)), entry) for i, entry in enumerate(value))
    else:
        yield path_of(at), value


def _all_taken(parts: Iterable[Completed]) -> dict[str, Any]:
    return {where: value for part in parts for where, value in part.taken.items()}


class SchedulingDefaults(Model):
    """Defaults of spec.scheduling."""

    topology_levels: Annotated[list[LabelKey], Field(max_length=8)] | None = None
    """Labels of nodes, from the widest domain to the narrowest, for jobs whose backend reads them."""
    scheduler_name: DnsName | None = None
    """Scheduler of the pods of jobs whose backend has none of its own."""

    def of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults for such a `spec.scheduling`, by the backend that it names."""
        backend = given.get("backend", SchedulingSpec().backend)
        defaults = self.dump()
        if backend not in readers_of("topologyLevels"):
            defaults.pop("topologyLevels", None)
        if backend not in WITHOUT_SCHEDULER:
            defaults.pop("schedulerName", None)
        return defaults


class TemplateDefaults(Model):
    """Defaults of the `template` of every role."""

    tolerations: Tolerations | None = None
    """Kubernetes tolerations, for roles that have none of their own."""
    labels: StringMap | None = None
    """Further labels of pods."""
    annotations: StringMap | None = None
    """Further annotations of pods."""
    priority_class_name: ObjectName | None = None
    """Name of a Kubernetes PriorityClass, for roles that have none of their own."""


class JobDefaults(Model):
    """What is unset here, and what a job writes itself, is the job's. Maps are merged key by key; of `env`, `imagePullSecrets` and `volumes` a job
    gets the entries whose names and mount paths it does not use itself; other lists are taken whole."""

    image: ImageName | None = None
    """Image of trainer and rollout pods."""
    image_pull_secrets: PullSecrets | None = None
    """Secrets with which the image is pulled: `{name: NAME}`. They have to exist in the namespaces of jobs."""
    env: EnvVars | None = None
    """Environment variables of all containers. No secrets: every user of the cluster can read them here."""
    env_from: EnvironmentSources | None = None
    """Kubernetes `envFrom` sources of all containers."""
    volumes: VolumeList | None = None
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
        placed = self.scheduling.of(_section(spec, "scheduling"))
        own |= {"scheduling": placed} if placed else {}
        return own | (_templates(spec, {"template": self.template.dump()}) if self.template.dump() else {})


def _templates(spec: Mapping[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """A partial spec with `template` in every section that describes pods."""
    rewards = [_reward(reward, template) for reward in _list(spec, "rewards")]
    lists = {name: [template for _ in _list(spec, name)] for name in ("pools", "environments")} | {"rewards": rewards}
    roles = {role: dict(template) for role in ("trainer", *_roles(spec))}
    if isinstance(_section(_section(spec, "rollout"), "agent").get("workers"), dict):
        roles["rollout"] = roles.get("rollout", {}) | {"agent": {"workers": template}}
    return roles | {name: entries for name, entries in lists.items() if entries}


def _reward(reward: Any, template: dict[str, Any]) -> dict[str, Any]:
    model = {"model": template} if _is_gang(reward, "model") else {}
    has_workers = isinstance(reward, dict) and isinstance(reward.get("workers"), dict)
    return model | ({"workers": template} if has_workers else {})


def _section(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = spec.get(name)
    return section if isinstance(section, dict) else {}


def _list(spec: Mapping[str, Any], name: str) -> list[Any]:
    entries = spec.get(name)
    return entries if isinstance(entries, list) else []


def _roles(spec: Mapping[str, Any]) -> Iterator[str]:
    """Sections, besides the trainer's, of rollouts and other models that have pods of their own."""
    rollout = _section(spec, "rollout")
    if spec.get("task") in (None, "rl") and rollout.get("placement") in (None, "separate"):
        yield "rollout"
    yield from (name for name in ("critic", "reference") if _is_gang(spec, name))


def _is_gang(spec: Any, name: str) -> bool:
    return isinstance(spec, dict) and bool(_section(spec, name).get("processesPerNode"))


IMAGE_USER = PodSecurity(
    run_as_user=names.USER_ID,
    run_as_group=names.USER_ID,
    fs_group=names.USER_ID,
    supplemental_groups=[],
    fs_group_change_policy="OnRootMismatch",
)
"""The default: the user of our images."""
ASK = "or ask the administrator of rljob"


class Range(Model):
    """Ids from `minimum` to `maximum`, both included."""

    minimum: Id = 0
    maximum: Id = MAX_ID


class PodAccount(Model):
    """The ServiceAccount of a job's pods."""

    annotations: StringMap = {}
    """By which clouds give its pods an identity of theirs (`eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`)."""


class Limits(Model):
    """Limits of what jobs may choose. The administrator's own defaults need not keep them."""

    user_ids: Range = Range()
    group_ids: Range = Range()
    runtime_class_names: list[str] = []
    """RuntimeClasses that jobs may choose; empty: all."""
    scheduler_names: list[str] = []
    """Schedulers that jobs may name; empty: all."""


class JobPolicy(Model):
    """The values under `jobs` of the chart: defaults and limits of the specs of jobs, which nodes jobs leave, and additions to their pods."""

    pod_security: PodSecurity = IMAGE_USER
    """A field that it leaves open is left out of the pods, so that the platform chooses, as OpenShift does."""
    runtime_class_name: str = ""
    """RuntimeClass of jobs that choose none; empty: the default of the nodes."""
    max_pods: Annotated[int, Field(ge=1, le=MOST_PODS)] = MOST_PODS
    """Pods that a job may have, in all its roles."""
    reserve_after_seconds: Annotated[int, Field(ge=0, le=30 * 86400)] = 1800
    """Seconds after which a job that waits for nodes of the `builtin` backend reserves those that it will get."""
    limits: Limits = Limits()
    defaults: JobDefaults = JobDefaults()
    leave_nodes: LeaveNodes = LeaveNodes()
    service_account: PodAccount = PodAccount()
    agent_sandbox: bool = False
    """Whether pods of environments are made by the objects of kubernetes-sigs/agent-sandbox, which the cluster then has to have."""
    pod_patch: PodPatch = NO_PATCH

    def admit(self, spec: Mapping[str, Any], name: str, model_config: dict[str, Any] | None = None) -> "Admitted":
        """Validates a raw spec, with the defaults for fields that it leaves open, and with a violation for each limit that it exceeds. The arguments
        are those of `rules.validate`."""
        completed = self.defaults.completed(spec)
        checked = validate(completed.value, name, model_config)
        violations = tuple(_of_the_cluster(v, completed.taken) for v in checked.violations)
        if checked.spec is None:
            return Admitted(ValidationResult(None, violations), completed.taken)
        exceeded = self._exceeded(checked.spec)
        return Admitted(ValidationResult(self.completed(checked.spec), (*violations, *exceeded)), completed.taken)

    def completed(self, spec: RLJobSpec) -> RLJobSpec:
        """The spec with the policy's pod security and RuntimeClass where it sets none."""
        own = {field: value for field, value in spec.pod_security if value is not None}
        security = self.pod_security.model_copy(update=own)
        runtime = spec.runtime_class_name or self.runtime_class_name or None
        return spec.model_copy(update={"pod_security": security, "runtime_class_name": runtime})

    def _exceeded(self, spec: RLJobSpec) -> Iterator[Violation]:
        given, limits = spec.pod_security, self.limits
        groups = {"runAsGroup": given.run_as_group, "fsGroup": given.fs_group}
        groups |= {f"supplementalGroups[{i}]": group for i, group in enumerate(given.supplemental_groups or [])}
        yield from _outside({"runAsUser": given.run_as_user}, limits.user_ids)
        yield from _outside(groups, limits.group_ids)
        yield from _unlisted("spec.runtimeClassName", spec.runtime_class_name, limits.runtime_class_names)
        if spec.scheduling.scheduler_name != self.defaults.scheduling.scheduler_name:
            name = spec.scheduling.scheduler_name
            yield from _unlisted("spec.scheduling.schedulerName", name, limits.scheduler_names)
        if self.max_pods < MOST_PODS:
            yield from size_violations(spec, self.max_pods, "the administrator allows", f"lower it, {ASK}")


DEFAULT_POLICY = JobPolicy()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The result of validating a raw spec by all rules and by the administrator's policy."""

    result: ValidationResult
    taken: dict[str, Any]
    """Defaults of `jobs.defaults` that the spec took, by their path in it."""


def _of_the_cluster(violation: Violation, taken: Mapping[str, Any]) -> Violation:
    """The violation, with a note if its field is a default of the cluster: the user would not find it in the manifest."""
    if not any(violation.field.startswith(path) for path in taken):
        return violation
    return replace(violation, rule=f"{violation.rule} (a default of the cluster: jobs.defaults)")


def _unlisted(field: str, given: str | None, allowed: Sequence[str]) -> Iterator[Violation]:
    """A violation of a name that is not among those allowed; an empty list allows all."""
    if given and allowed and given not in allowed:
        rule = f"the administrator allows {', '.join(allowed)}"
        yield Violation(field, given, rule, f"choose one of them, {ASK}")


def _outside(ids: dict[str, int | None], limits: Range) -> Iterator[Violation]:
    """Violations of ids outside the limits. `ids`: by field of spec.podSecurity."""
    for name, given in ids.items():
        if given is not None and not limits.minimum <= given <= limits.maximum:
            rule = f"the administrator allows {limits.minimum} to {limits.maximum}"
            yield Violation(f"spec.podSecurity.{name}", str(given), rule, f"choose one of them, {ASK}")
