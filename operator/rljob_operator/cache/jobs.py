"""RLJobs as they are cached: one version of the object, with its spec and status parsed when they are first needed."""

import logging
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import ValidationError

from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_api.rules import ValidationResult, Violation
from rljob_api.rules.validator import extent
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.type_errors import first_problem
from rljob_operator.cache.cache import same_but_version, share_texts, strip_managed_fields
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


UNCHECKABLE = Violation(
    "spec", "set", "cannot be checked: a rule of rljob has failed", "report it with the operator's log"
)
UNCHECKED = ValidationResult(None, (Violation("spec", "set", "is large and has not been checked yet", "wait"),))


class LazyValidation:
    """A raw spec, validated once: a small one when it is first needed, a large one by `reconcile/large_specs.py`."""

    def __init__(self, raw: Object, name: str, policy: JobPolicy) -> None:
        self.raw, self.name, self.policy = raw, name, policy
        self._known: ValidationResult | None = None
        self._meanwhile = UNCHECKED

    @property
    def is_known(self) -> bool:
        """Whether `result` is final. Validates a small spec."""
        if self.waits:
            self._known = self._validated()
        return self._known is not None

    @property
    def waits(self) -> bool:
        """Whether the spec is small, and nobody has needed its result yet."""
        return self._known is None and self._is_small

    @cached_property
    def _is_small(self) -> bool:
        return extent(self.raw).small

    def _validated(self) -> ValidationResult:
        """A rule that raises refuses this job only: whoever looks at all jobs asks for the results of all."""
        try:
            return self.policy.admit(self.raw, self.name).result
        except Exception as error:
            log.exception("the spec of %s cannot be checked", self.name)
            return ValidationResult(None, (replace(UNCHECKABLE, value=type(error).__name__),))

    @property
    def result(self) -> ValidationResult:
        """The spec is validated with the administrator's defaults for the fields that it leaves open."""
        return self.so_far if self.is_known else self._meanwhile

    @result.setter
    def result(self, result: ValidationResult) -> None:
        self._known = result

    @property
    def so_far(self) -> ValidationResult:
        """The result if it is known, for whoever looks at all jobs: to validate thousands of specs at once would keep the event loop from renewing
        the operator's lease. See ClusterCache.validate."""
        return self._known or self._meanwhile

    @property
    def is_unchecked(self) -> bool:
        """Whether nobody has tried to validate the spec yet."""
        return not self.is_known and self._meanwhile is UNCHECKED

    def postpone(self, why: Violation) -> None:
        """The result is not known yet, for this reason."""
        self._meanwhile = ValidationResult(None, (why,))


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


def is_run_here(obj: Object) -> bool:
    """Whether the operator runs the job, or leaves it alone because spec.managedBy names another controller, which then also writes the status."""
    spec = obj.get("spec")
    return not isinstance(spec, dict) or spec.get("managedBy", names.CONTROLLER) == names.CONTROLLER


def transform(obj: Object, before: CachedJob | None, policy: JobPolicy) -> CachedJob:
    """A spec that has not changed is kept once, however many versions of the object come. Its generation has to be the same, too: for Python 1 and
    true are equal."""
    kept = strip_managed_fields(obj, "spec")
    raw = obj.get("spec") or {}
    if before is not None and _generation(before.object) == _generation(obj) and before.validation.raw == raw:
        return CachedJob(kept | {"spec": before.validation.raw}, before.validation)
    raw = share_texts(raw)
    return CachedJob(kept | {"spec": raw}, LazyValidation(raw, obj["metadata"]["name"], policy))


def _generation(obj: Object) -> tuple[object, object]:
    """Which spec an object has, of which creation of its name."""
    return obj["metadata"].get("uid"), obj["metadata"].get("generation")


def predicate(before: CachedJob, after: CachedJob) -> bool:
    """Events that report our own status writes call for no reconcile: the answers to these writes are in the cache already."""
    return not same_but_version(before.object, after.object)
