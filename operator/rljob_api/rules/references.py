"""References to Secrets and ConfigMaps, by the fields of Kubernetes: what is misspelt would be dropped from the pods without a word."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints

from rljob_api.base import KubernetesObject
from rljob_api.rules.engine import Check, Violation
from rljob_api.rules.fields import kubernetes_violations
from rljob_api.rules.pods import templates
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Quantity
from rljob_api.type_errors import as_written

_Text = Annotated[str, StringConstraints(min_length=1)]


class _Named(KubernetesObject):
    name: _Text


class _Object(_Named):
    optional: bool | None = None


class _KeyOfObject(_Object):
    key: _Text


class _FieldRef(KubernetesObject):
    field_path: _Text
    api_version: str | None = None


class _ResourceFieldRef(KubernetesObject):
    resource: _Text
    container_name: str | None = None
    divisor: Quantity | None = None


class _FileKeyRef(KubernetesObject):
    volume_name: _Text
    path: _Text
    key: _Text
    optional: bool | None = None


class _ValueFrom(KubernetesObject):
    secret_key_ref: _KeyOfObject | None = None
    config_map_key_ref: _KeyOfObject | None = None
    field_ref: _FieldRef | None = None
    resource_field_ref: _ResourceFieldRef | None = None
    file_key_ref: _FileKeyRef | None = None


class _EnvFrom(KubernetesObject):
    prefix: str = ""
    secret_ref: _Object | None = None
    config_map_ref: _Object | None = None


def reference_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Of variables, `envFrom` and `imagePullSecrets`."""
    for i, secret in enumerate(spec.image_pull_secrets):
        yield from kubernetes_violations(f"spec.imagePullSecrets[{i}]", _Named, secret, "imagePullSecrets")
    for i, source in enumerate(spec.env_from):
        yield from _one_of(f"spec.envFrom[{i}]", _EnvFrom, source, "containers.envFrom")
    for at, variables in (("spec.env", spec.env), *((f"{at}.template.env", t.env) for at, t in templates(spec))):
        for i, variable in enumerate(variables):
            if variable.value_from is not None:
                yield from _one_of(f"{at}[{i}].valueFrom", _ValueFrom, variable.value_from, "containers.env.valueFrom")


def _one_of(at: str, kind: type[KubernetesObject], given: Mapping[str, Any], explained: str) -> Iterator[Violation]:
    """An object with one source. Sources are its fields that may be None."""
    sources = [str(field.alias) for field in kind.model_fields.values() if field.default is None]
    wrong = list(kubernetes_violations(at, kind, given, explained))
    yield from wrong
    if not wrong and sum(given.get(source) is not None for source in sources) != 1:
        yield Violation(at, as_written(dict(given)), "must name exactly one source", f"use one of {', '.join(sources)}")


RULES: tuple[Check, ...] = (reference_violations,)
