"""What the administrator sets for the pods of all jobs: defaults for what a job leaves open, and limits of what it may choose."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from rljob_api import names
from rljob_api.base import Model
from rljob_api.job_defaults import JobDefaults
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.rules import ValidationResult, Violation, validate
from rljob_api.rules.scheduling import size_violations
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import MOST_PODS
from rljob_api.spec.pod_security import MAX_ID, Id, PodSecurity

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


class Limits(Model):
    """Limits of what jobs may choose. The administrator's own defaults need not keep them."""

    user_ids: Range = Range()
    group_ids: Range = Range()
    runtime_class_names: list[str] = []
    """RuntimeClasses that jobs may choose; empty: all."""


class JobPolicy(Model):
    """The values under `jobs` of the chart: defaults and limits of the specs of jobs, and which nodes jobs leave."""

    pod_security: PodSecurity = IMAGE_USER
    """A field that it leaves open is left out of the pods, so that the platform chooses, as OpenShift does."""
    runtime_class_name: str = ""
    """RuntimeClass of jobs that choose none; empty: the default of the nodes."""
    max_pods: Annotated[int, Field(ge=1, le=MOST_PODS)] = MOST_PODS
    """Pods that a job may have, in all its roles."""
    limits: Limits = Limits()
    defaults: JobDefaults = JobDefaults()
    leave_nodes: LeaveNodes = LeaveNodes()

    def admit(self, spec: Mapping[str, Any], name: str, model_config: dict[str, Any] | None = None) -> "Admitted":
        """Validates a raw spec, with the defaults for fields that it leaves open, and with a violation for each limit that it exceeds. The arguments
        are those of `validation.validate`."""
        completed = self.defaults.completed(spec)
        found = validate(completed.value, name, model_config)
        violations = tuple(_of_the_cluster(v, completed.taken) for v in found.violations)
        if found.spec is None:
            return Admitted(ValidationResult(None, violations), completed.taken)
        exceeded = self._exceeded(found.spec)
        return Admitted(ValidationResult(self.completed(found.spec), (*violations, *exceeded)), completed.taken)

    def completed(self, spec: RLJobSpec) -> RLJobSpec:
        """The spec with the policy's pod security and RuntimeClass where it sets none."""
        security = self.pod_security.model_copy(update=spec.pod_security.model_dump(exclude_none=True))
        runtime = spec.runtime_class_name or self.runtime_class_name or None
        return spec.model_copy(update={"pod_security": security, "runtime_class_name": runtime})

    def _exceeded(self, spec: RLJobSpec) -> Iterator[Violation]:
        given, limits = spec.pod_security, self.limits
        groups = {"runAsGroup": given.run_as_group, "fsGroup": given.fs_group}
        groups |= {f"supplementalGroups[{i}]": group for i, group in enumerate(given.supplemental_groups or [])}
        yield from _outside({"runAsUser": given.run_as_user}, limits.user_ids)
        yield from _outside(groups, limits.group_ids)
        runtime, allowed = spec.runtime_class_name, limits.runtime_class_names
        if runtime and allowed and runtime not in allowed:
            rule = f"the administrator allows {', '.join(allowed)}"
            yield Violation("spec.runtimeClassName", runtime, rule, f"choose one of them, {ASK}")
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


def _outside(ids: dict[str, int | None], limits: Range) -> Iterator[Violation]:
    """Violations of ids outside the limits. `ids`: by field of spec.podSecurity."""
    for field, given in ids.items():
        if given is not None and not limits.minimum <= given <= limits.maximum:
            rule = f"the administrator allows {limits.minimum} to {limits.maximum}"
            yield Violation(f"spec.podSecurity.{field}", str(given), rule, f"choose one of them, {ASK}")
