"""RLJobs as users write them: one or more in a YAML or JSON text, among other objects. And values from the command line that replace those of a text:
`--set train.steps=500`, in Helm's syntax."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import yaml

from rljob_api import names
from rljob_api.rules import ValidationResult, Violation, validate
from rljob_api.rules.pods import annotation_violations, label_violations
from rljob_api.rules.scheduling import QUEUE_LABEL
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written, path_of
from rljob_api.yaml_text import Document, documents, said, value_of

KEY = re.compile(r"((?:\\.|[^.\[\]\\])+)((?:\[[0-9]+\])*)(?:\.(?=.)|$)")
"""One name of a path, with the indices behind it. `\\.` is a dot of a name, as in those of labels."""
TOP = ("apiVersion", "kind", "metadata", "spec", "status")
METADATA = (
    *("name", "namespace", "labels", "annotations", "generateName", "finalizers", "ownerReferences", "uid"),
    *("resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
"""Fields of Kubernetes' ObjectMeta (meta/v1)."""
SECTIONS = frozenset(field.alias for field in RLJobSpec.model_fields.values())
T = TypeVar("T")
FIX = "write PATH=VALUE, for example train.steps=500 or rewards[0].rule=math"


class OverrideError(ValueError):
    """An override that cannot be applied. The message is for the user."""


@dataclass(frozen=True, slots=True)
class Override:
    """One value of a spec. None removes the field."""

    text: str
    """As the user wrote it."""
    location: tuple[str | int, ...]
    """Below the spec."""
    value: Any

    @staticmethod
    def of(text: str) -> "Override":
        """`PATH=VALUE`, where the value is YAML and the path may begin with `spec.`, as in messages. Raises OverrideError."""
        path, equals, value = text.partition("=")
        location = _location(path.strip().removeprefix("spec."))
        if not equals or not location:
            raise OverrideError(f"--set {text}: is no path and value; {FIX}")
        try:
            return Override(text, location, value_of(value))
        except yaml.YAMLError as error:
            raise OverrideError(f"--set {text}: the value is not YAML: {said(error)}") from error

    def applied(self, given: Any, depth: int = 0) -> Any:
        """A copy of `given` with the value put in. `given`: what the first `depth` keys of the path lead to, at 0 the whole spec. Raises
        OverrideError."""
        if depth == len(self.location):
            return self.value
        key = self.location[depth]
        if isinstance(key, str):
            fields = self._as(dict[str, Any](), "an object", given, depth)
            return fields | {key: self.applied(fields.get(key), depth + 1)}
        items = self._as(list[Any](), "a list", given, depth)
        if key > len(items):
            raise self._refused(depth, given, f"has {len(items)} entries; the next one is [{len(items)}]")
        return [*items[:key], self.applied(items[key] if key < len(items) else None, depth + 1), *items[key + 1 :]]

    def _as(self, empty: T, kind: str, given: Any, depth: int) -> T:
        if given is None:
            return empty
        if isinstance(given, type(empty)):
            return given
        raise self._refused(depth, given, f"is not {kind}; write the whole value of it")

    def _refused(self, depth: int, given: Any, why: str) -> OverrideError:
        where = path_of(("spec", *self.location[:depth]))
        return OverrideError(f"--set {self.text}: {where} = {as_written(given)}: {why}")


def applied(spec: dict[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """A copy of the spec with all overrides applied in their order. Raises OverrideError."""
    for override in overrides:
        spec = override.applied(spec)
    return spec


def _location(path: str) -> tuple[str | int, ...]:
    """Keys and indices of a path; empty: it is no path."""
    parts = list(KEY.finditer(path))
    if "".join(part[0] for part in parts) != path:
        return ()
    return tuple(key for part in parts for key in (part[1].replace("\\.", "."), *map(int, re.findall(r"\d+", part[2]))))


class ManifestError(ValueError):
    """The text holds no RLJob that can be checked. The message is for the user."""


@dataclass(frozen=True)
class Manifest:
    """One RLJob whose spec is not validated yet."""

    name: str
    namespace: str
    """Empty: not given."""
    spec: dict[str, Any]
    problems: tuple[Violation, ...] = ()
    """What is wrong around the spec: keys that the text has twice, and metadata that the API server refuses."""

    def validate(self, model_config: dict[str, Any] | None = None) -> ValidationResult:
        """The result of `rules.validate`, with the violations around the spec."""
        result = validate(self.spec, self.name, model_config)
        return replace(result, violations=(*self.problems, *result.violations))


def read(text: str, settings: Iterable[str] = ()) -> list[Manifest]:
    """All RLJobs of a text, each with the `settings` (`train.steps=500`) put into its spec. Other kinds in the text are passed over. Raises
    ManifestError, and OverrideError for a setting that cannot be put."""
    overrides = [Override.of(setting) for setting in settings]
    try:
        given = [*documents(text)]
    except yaml.YAMLError as error:
        raise ManifestError(f"is not YAML: {said(error)}") from error
    manifests = [_manifest(d) for d in given if isinstance(d.value, dict) and _meant(d.value)]
    if not manifests:
        found = ", ".join(sorted({_kind(d.value) for d in given if d.value is not None})) or "nothing"
        raise ManifestError(f"holds no {names.KIND} (found: {found})")
    return list(_with_namesakes([replace(m, spec=applied(m.spec, overrides)) for m in manifests]))


def _meant(given: dict[str, Any]) -> bool:
    """Whether an object is a job, also by a misspelt kind: the others would be checked, and this one silently not."""
    version, kind = str(given.get("apiVersion")), str(given.get("kind"))
    return version.partition("/")[0] == names.GROUP or kind.lower().removesuffix("s") == names.KIND.lower()


def _kind(value: Any) -> str:
    """What a document is, where no job is found."""
    if isinstance(value, list):
        return "a list; write its objects without `- `, and `---` between two"
    if isinstance(value, dict):
        return str(value.get("kind", "an object without kind"))
    return f"the text {as_written(value)}"


def _manifest(document: Document) -> Manifest:
    given = document.value
    if given.get("kind") != names.KIND:
        known = given.get("apiVersion") == names.API_VERSION
        version = f", {'since apiVersion is' if known else 'and apiVersion'} {names.API_VERSION}"
        raise ManifestError(f"kind = {given.get('kind', 'unset')}: must be {names.KIND}{version}{_slip('kind', given)}")
    if given.get("apiVersion") != names.API_VERSION:
        written = f"apiVersion = {given.get('apiVersion', 'unset')}"
        raise ManifestError(f"{written}: must be {names.API_VERSION}{_slip('apiVersion', given)}")
    metadata, spec = given.get("metadata"), given.get("spec")
    if not isinstance(metadata, dict) or metadata.get("name") is None:
        raise ManifestError(f"metadata.name is missing: a job needs a name{_slip('metadata', given)}")
    if not isinstance(metadata["name"], str):
        raise ManifestError(f"metadata.name = {as_written(metadata['name'])}: must be a text")
    if not isinstance(spec, dict):
        slip = _slip("spec", given) or "; see spec in docs/reference/api.md, or `kubectl explain rljob.spec`"
        raise ManifestError(f"spec is missing or not an object{slip}")
    unknown = (*_unknown("", given, TOP), *_unknown("metadata.", metadata, METADATA))
    problems = (*_ambiguous(document), *unknown, *_metadata_violations(metadata), *_unqueued(metadata, spec))
    return Manifest(metadata["name"], str(metadata.get("namespace") or ""), spec, problems)


def _slip(wanted: str, given: dict[str, Any]) -> str:
    """A key that was meant, where the one that is wanted is not there."""
    if wanted in given:
        return ""
    others = [str(key) for key in given if key not in TOP]
    near = difflib.get_close_matches(wanted.lower(), [key.lower() for key in others], n=1)
    return next((f"; in place of {key} write {wanted}" for key in others if key.lower() in near), "")


def _unknown(prefix: str, given: dict[str, Any], known: Collection[str]) -> Iterator[Violation]:
    """Fields that the API server refuses, or drops without a word."""
    for key in (str(key) for key in given if key not in known):
        near = difflib.get_close_matches(key, known, n=1)
        inside = f"it belongs to spec: indent it as spec.{key}" if key in SECTIONS else "remove it"
        fix = f"did you mean {prefix}{near[0]}?" if near and key not in SECTIONS else inside
        yield Violation(f"{prefix}{key}", as_written(given[key]), "there is no such field", fix)


def _metadata_violations(metadata: dict[str, Any]) -> Iterator[Violation]:
    """Labels and annotations, of which `kubectl apply` would say only that they cannot be decoded."""
    for kind, rules in (("labels", label_violations), ("annotations", annotation_violations)):
        at, given = f"metadata.{kind}", metadata.get(kind)
        if not isinstance(given, dict | None):
            yield Violation(at, as_written(given), "must be an object with a text for each key", "write {KEY: VALUE}")
            continue
        entries = {str(key): value for key, value in (given or {}).items()}
        for key in (key for key, value in entries.items() if not isinstance(value, str)):
            yield Violation(f"{at}.{key}", as_written(entries[key]), "must be a text", "put it in quotes")
        yield from rules(at, {key: value for key, value in entries.items() if isinstance(value, str)})


def _unqueued(metadata: dict[str, Any], spec: dict[str, Any]) -> Iterator[Violation]:
    """Kueue's label on a job that it does not queue: the job would start at once, past every quota."""
    labels, scheduling = metadata.get("labels"), spec.get("scheduling")
    queue = labels.get(QUEUE_LABEL) if isinstance(labels, dict) else None
    backend = scheduling.get("backend") if isinstance(scheduling, dict) else None
    if queue and backend != "kueue" and not spec.get("managedBy"):
        rule = (
            "queues nothing here: the job would start without its queue's quota, since Kueue sees pods and not the job"
        )
        fix = f"remove it, and set spec.scheduling: {{backend: kueue, queue: {queue}}}"
        yield Violation(f"metadata.labels.{QUEUE_LABEL}", as_written(queue), rule, fix)


def _ambiguous(document: Document) -> Iterator[Violation]:
    for key in document.duplicates:
        first, second = key.lines
        rule = f"stands twice, in lines {first} and {second}"
        yield Violation(path_of(key.location), " and ".join(key.values), rule, "keep one of them")


def _with_namesakes(manifests: list[Manifest]) -> Iterator[Manifest]:
    """`kubectl apply` would make one job of two with the same name."""
    seen = set()
    for m in manifests:
        namesake = Violation("metadata.name", m.name, "another job of the file has this name", "rename one of them")
        yield replace(m, problems=(*m.problems, namesake)) if (m.namespace, m.name) in seen else m
        seen.add((m.namespace, m.name))
