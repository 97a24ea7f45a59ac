"""RLJobs as they are cached: one version of the object, and what its spec means."""

from dataclasses import dataclass
from functools import cached_property

from rljob_api.job_policy import JobPolicy
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.validation import ValidationResult
from rljob_operator.cache.cache import same_but_version, strip_managed_fields
from rljob_operator.kube.api import Object

KNOWN_META = {
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "annotations",
}


@dataclass(eq=False)
class LazyValidation:
    """A raw spec, validated once, when it is first needed."""

    raw: Object
    name: str
    policy: JobPolicy

    @cached_property
    def result(self) -> ValidationResult:
        """Of the spec with the administrator's defaults in place of what it leaves open."""
        return self.policy.admit(self.raw, self.name).result


@dataclass(eq=False)
class CachedJob:
    """One version of an RLJob. A status that cannot be read is an error of the reconcile: it is authoritative, so there is no default."""

    object: Object
    validation: LazyValidation

    @cached_property
    def meta(self) -> RLJobMeta:
        return RLJobMeta.model_validate({k: v for k, v in self.object["metadata"].items() if k in KNOWN_META})

    @cached_property
    def status(self) -> JobStatus:
        return JobStatus.model_validate(self.object.get("status") or {})

    @property
    def lacks_room(self) -> bool:
        """By its status, unparsed: many jobs are asked often."""
        placement = (self.object.get("status") or {}).get("placement") or {}
        return bool(placement.get("problem")) or "" in placement.get("report", {}).get("rollouts", [])


def cached(obj: Object, before: CachedJob | None, policy: JobPolicy) -> CachedJob:
    raw = obj.get("spec") or {}
    same = before is not None and before.validation.raw == raw
    validation = before.validation if before and same else LazyValidation(raw, obj["metadata"]["name"], policy)
    return CachedJob(strip_managed_fields(obj), validation)


def predicate(before: CachedJob, after: CachedJob) -> bool:
    """The echoes of our own status writes are no news: they were cached when they were answered."""
    return not same_but_version(before.object, after.object)
