"""What the administrator sets for the pods of all jobs: defaults for what a job leaves open, and limits of what it may choose."""

from collections.abc import Iterator

from rljob_api import names
from rljob_api.base import Model
from rljob_api.spec import RLJobSpec
from rljob_api.spec.pod_security import MAX_ID, Id, PodSecurity
from rljob_api.validation import ValidationResult, Violation

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
    """What jobs may choose. The defaults are not held against them."""

    user_ids: Range = Range()
    group_ids: Range = Range()
    runtime_class_names: list[str] = []
    """None: all."""


class JobPolicy(Model):
    """The values `jobs` of the chart that are about pods."""

    pod_security: PodSecurity = IMAGE_USER
    """A field that it leaves open is left out of the pods, so that the platform chooses, as OpenShift does."""
    runtime_class_name: str = ""
    """Empty: that of the nodes."""
    limits: Limits = Limits()

    def applied(self, result: ValidationResult) -> ValidationResult:
        """With the defaults in the spec, and a violation for each limit that the spec exceeds."""
        if result.spec is None:
            return result
        return ValidationResult(self.completed(result.spec), (*result.violations, *self._exceeded(result.spec)))

    def completed(self, spec: RLJobSpec) -> RLJobSpec:
        """With the defaults in place of what it leaves open."""
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


DEFAULT_POLICY = JobPolicy()


def _outside(ids: dict[str, int | None], limits: Range) -> Iterator[Violation]:
    """By field of spec.podSecurity."""
    for field, given in ids.items():
        if given is not None and not limits.minimum <= given <= limits.maximum:
            rule = f"the administrator allows {limits.minimum} to {limits.maximum}"
            yield Violation(f"spec.podSecurity.{field}", str(given), rule, f"choose one of them, {ASK}")
