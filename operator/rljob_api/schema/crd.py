"""The CustomResourceDefinition, generated from the models, with the rules that the API server checks itself, as CEL: OBJECT_RULES of rules/, the
job's name, and fields that may not change.
"""

from typing import Any

import yaml

from rljob_api import names
from rljob_api.rules.fields import is_optional
from rljob_api.rules.validator import JOB_NAME, OBJECT_RULES
from rljob_api.schema.sections import Schema, Validation, complete, keep_read_defaults, place
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus

NAME: Validation = {
    "rule": f"self.metadata.name.size() <= {names.MAX_JOB_NAME} && self.metadata.name.matches('^{JOB_NAME}$')",
    "message": f"metadata.name: at most {names.MAX_JOB_NAME} lower-case letters, digits and '-', beginning with a letter",
}

IMMUTABLE = {
    "task": "the checkpoints are of this one; create a new job",
    "checkpoint.path": "a run does not move; create a new job",
    "model.path": "the checkpoints hold this model; create a new job",
    "managedBy": "no controller can take a job from another; create a new job",
}
"""Reasons why fields may not change, by path."""


def _value(spec: str, path: str) -> str:
    """CEL of a field of IMMUTABLE; absent ones are empty texts. (The API server refuses an optional's `==`, whose cost it cannot bound.)"""
    return f"(has({spec}.{path}) ? {spec}.{path} : '')" if is_optional(RLJobSpec, path) else f"{spec}.{path}"


def validations() -> dict[tuple[str, ...], list[Validation]]:
    """Entries of `x-kubernetes-validations`, by the path of the schema that `self` is in them."""
    by_path: dict[tuple[str, ...], list[Validation]] = {(): []}
    for rule in OBJECT_RULES:
        by_path.setdefault((*rule.items.split("."), "[]") if rule.items else (), []).append(rule.kubernetes())
    by_path[()] += [
        {
            "rule": f"{_value('self', path)} == {_value('oldSelf', path)}",
            "message": f"spec.{path} is immutable: {why}",
        }
        for path, why in IMMUTABLE.items()
    ]
    return by_path


_DROPPED = {"title", "propertyNames", "exclusiveMinimum", "discriminator"}

_COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Step", "type": "string", "jsonPath": ".status.progress.text"},
    {"name": "Metric", "type": "string", "jsonPath": ".status.progress.metric"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.trainer.text"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts.total"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Rollouts", "type": "string", "jsonPath": ".status.rollout.text", "priority": 1},
    {"name": "Checkpoint", "type": "integer", "jsonPath": ".status.checkpoint.latest.step", "priority": 1},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
]

UNOBSERVED = {"observedGeneration": -1}
"""Status of a job that no operator has seen yet, so that tools which compare `observedGeneration` keep waiting."""

_SCALE = {
    "specReplicasPath": ".spec.rollout.replicas",
    "statusReplicasPath": ".status.rollout.ready",
    "labelSelectorPath": ".status.rollout.selector",
}
"""`kubectl scale` is about rollouts: a gang of trainers has one size per attempt."""


def spec_schema() -> Schema:
    """Of `spec`, with its rules and all defaults."""
    spec = structural(RLJobSpec.model_json_schema(by_alias=True))
    for path, rules in validations().items():
        for rule in rules:
            place(_at(spec, path), rule)
    return spec


def crd() -> dict[str, Any]:
    """The whole object. Of the defaults it has those that rules read."""
    spec = spec_schema()
    keep_read_defaults(spec)
    complete(spec)
    status = _open(structural(JobStatus.model_json_schema(by_alias=True, mode="serialization"))) | {
        "default": UNOBSERVED
    }
    schema = {
        "type": "object",
        "description": "A reinforcement learning run: a gang of Megatron trainers and a pool of vLLM rollouts.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [NAME],
    }
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": _SCALE},
        "additionalPrinterColumns": _COLUMNS,
        "schema": {"openAPIV3Schema": schema},
    }
    kinds = {
        "kind": names.KIND,
        "listKind": f"{names.KIND}List",
        "plural": names.PLURAL,
        "singular": "rljob",
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {"group": names.GROUP, "names": kinds, "scope": "Namespaced", "versions": [version]},
    }


def structural(schema: Schema) -> Schema:
    """A JSON schema of pydantic as Kubernetes wants it: no $ref, no anyOf but that of quantities, no titles, exclusive bounds as booleans."""
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        return _convert({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        (only,) = (option for option in node["anyOf"] if option.get("type") != "null")
        rest = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
        return _convert({**only, **rest}, definitions)
    out = {k: v for k, v in node.items() if k not in _DROPPED and not k.startswith("$")}
    if "exclusiveMinimum" in node:
        out |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if out.get("x-kubernetes-int-or-string"):
        out.pop("type")
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "const" in out:
        out["enum"] = [out.pop("const")]
        out["type"] = "string"
    if "properties" in out:
        out["properties"] = {k: _convert(v, definitions) for k, v in out["properties"].items()}
        out.pop("additionalProperties", None)
    if "patternProperties" in out:  # which keys there may be, only `validate` says
        (out["additionalProperties"],) = out.pop("patternProperties").values()
    if isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(out["additionalProperties"], definitions)
    if out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("additionalProperties", None)
    if "items" in out:
        out["items"] = _convert(out["items"], definitions)
    if isinstance(out.get("default"), dict):
        out["default"] = _own(out["default"], out)
    return out


def _own(default: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """An object's default without what equals the defaults of its fields, which the API server fills in anyway."""
    fields = schema.get("properties", {})
    nested = {
        k: _own(v, fields[k]) if isinstance(v, dict) and "properties" in fields.get(k, {}) else v
        for k, v in default.items()
    }
    return {k: v for k, v in nested.items() if v is not None and v != fields.get(k, {}).get("default")}


def _open(schema: Schema) -> Schema:
    """The schema of a status: without required fields, and without defaults, which would claim what was not observed."""
    out = {k: v for k, v in schema.items() if k not in ("required", "default")}
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = _open(out[key])
    if "properties" in out:
        out["properties"] = {k: _open(v) for k, v in out["properties"].items()}
    return out


def _at(schema: Schema, path: tuple[str, ...]) -> Schema:
    for key in path:
        schema = schema["items"] if key == "[]" else schema["properties"][key]
    return schema


def render() -> str:
    text = yaml.safe_dump(crd(), sort_keys=False, width=160, allow_unicode=True)
    return "# Generated by `make generate`; do not edit.\n" + text
