"""A structural schema as Helm reads one for values: JSON schema, draft 07."""

from typing import Any

Schema = dict[str, Any]
_KUBERNETES = ("x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields", "default")


def values_schema(structural: Schema) -> Schema:
    """Objects refuse unknown keys, unless they are verbatim or maps; nothing is put in that the values do not have."""
    out = {k: v for k, v in structural.items() if k not in _KUBERNETES}
    if out.pop("exclusiveMinimum", False):
        out["exclusiveMinimum"] = out.pop("minimum")
    if "properties" in out:
        out |= {"additionalProperties": False, "properties": _all(out["properties"])}
    elif isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = values_schema(out["additionalProperties"])
    return out | ({"items": values_schema(out["items"])} if "items" in out else {})


def _all(properties: dict[str, Schema]) -> dict[str, Schema]:
    return {name: values_schema(schema) for name, schema in properties.items()}
