"""References to Secrets and ConfigMaps, by the fields of Kubernetes: what is misspelt would be dropped from the pods without a word."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, NamedTuple

from rljob_api.rules.engine import Check, Violation
from rljob_api.rules.pods import templates
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written


class Fields(NamedTuple):
    """Fields of an object, and their types."""

    required: Mapping[str, type]
    optional: Mapping[str, type | UnionType]

    @property
    def all(self) -> Mapping[str, type | UnionType]:
        return {**self.required, **self.optional}


OPTIONAL = {"optional": bool}
KEY = Fields({"name": str, "key": str}, OPTIONAL)
VALUE_FROM = {
    "secretKeyRef": KEY,
    "configMapKeyRef": KEY,
    "fieldRef": Fields({"fieldPath": str}, {"apiVersion": str}),
    "resourceFieldRef": Fields({"resource": str}, {"containerName": str, "divisor": str | int}),
    "fileKeyRef": Fields({"volumeName": str, "path": str, "key": str}, OPTIONAL),
}
ENV_FROM = {"secretRef": Fields({"name": str}, OPTIONAL), "configMapRef": Fields({"name": str}, OPTIONAL)}
PULL_SECRET = Fields({"name": str}, {})
TYPES: Mapping[type | UnionType, str] = {str: "a text", bool: "true or false", str | int: "a quantity"}


def reference_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Of variables, `envFrom` and `imagePullSecrets`."""
    for i, secret in enumerate(spec.image_pull_secrets):
        yield from _object(f"spec.imagePullSecrets[{i}]", secret, PULL_SECRET)
    for i, source in enumerate(spec.env_from):
        at, named = f"spec.envFrom[{i}]", {k: v for k, v in source.items() if k != "prefix"}
        if not isinstance(source.get("prefix", ""), str):
            yield Violation(f"{at}.prefix", as_written(source["prefix"]), "must be a text", "write it in quotes")
        yield from _one_of(at, named, ENV_FROM)
    for at, variables in (("spec.env", spec.env), *((f"{at}.template.env", t.env) for at, t in templates(spec))):
        for i, variable in enumerate(variables):
            if variable.value_from is not None:
                yield from _one_of(f"{at}[{i}].valueFrom", variable.value_from, VALUE_FROM)


def _one_of(at: str, given: Mapping[str, Any], sources: Mapping[str, Fields]) -> Iterator[Violation]:
    """An object with one of these sources and nothing else."""
    kinds = f"use one of {', '.join(sources)}"
    for key in given.keys() - sources.keys():
        yield Violation(f"{at}.{key}", as_written(given[key]), "is no source that Kubernetes has", kinds)
    if given.keys() <= sources.keys() and len(given) != 1:
        yield Violation(at, as_written(dict(given)), "must name exactly one source", kinds)
    for key in given.keys() & sources.keys():
        yield from _object(f"{at}.{key}", given[key], sources[key])


def _object(at: str, given: Any, fields: Fields) -> Iterator[Violation]:
    known = f"its fields are {', '.join(fields.all)}"
    if not isinstance(given, Mapping):
        yield Violation(at, as_written(given), "must be an object", known)
        return
    for key in given.keys() - fields.all.keys():
        yield Violation(f"{at}.{key}", as_written(given[key]), "is no field of it", known)
    for key, kind in fields.all.items():
        if key in given and not isinstance(given[key], kind):
            yield Violation(f"{at}.{key}", as_written(given[key]), f"must be {TYPES[kind]}", known)
        elif key in fields.required and not given.get(key):
            yield Violation(f"{at}.{key}", as_written(given.get(key, "unset")), "is needed", known)


RULES: tuple[Check, ...] = (reference_violations,)
