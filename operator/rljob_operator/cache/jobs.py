"""RLJobs as they are cached: one version of the object, with its spec and status parsed when they are first needed."""

import logging
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from rljob_api.job_policy import JobPolicy
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.type_errors import first_problem
from rljob_api.validation import ValidationResult
from rljob_operator.cache.cache import same_but_version, strip_managed_fields
from rljob_operator.kube.api import Object

log = logging.getLogger(__name__)

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
        """The spec is validated with the administrator's defaults for the fields that it leaves open."""
        return self.policy.admit(self.raw, self.name).result


@dataclass(eq=False)
class CachedJob:
    """One version of an RLJob."""

    object: Object
    validation: LazyValidation

    @cached_property
    def meta(self) -> RLJobMeta:
        return RLJobMeta.model_validate({k: v for k, v in self.object["metadata"].items() if k in KNOWN_META})

    @cached_property
    def status(self) -> JobStatus:
        """Raises ValidationError, which fails the job's reconcile: the status is authoritative, so no default can take its place."""
        return JobStatus.model_validate(self.object.get("status") or {})

    @cached_property
    def readable_status(self) -> JobStatus | None:
        """The status, or None if it cannot be read: for whoever looks at all jobs, since one of them must not stop the others."""
        try:
            return self.status
        except ValidationError as error:
            log.error(
                "the status of %s/%s cannot be read: %s", self.meta.namespace, self.meta.name, first_problem(error)
            )
            return None


def transform(obj: Object, before: CachedJob | None, policy: JobPolicy) -> CachedJob:
    raw = obj.get("spec") or {}
    same = before is not None and before.validation.raw == raw
    validation = before.validation if before and same else LazyValidation(raw, obj["metadata"]["name"], policy)
    return CachedJob(strip_managed_fields(obj), validation)


def predicate(before: CachedJob, after: CachedJob) -> bool:
    """Events that report our own status writes call for no reconcile: the answers to these writes are in the cache already."""
    return not same_but_version(before.object, after.object)
