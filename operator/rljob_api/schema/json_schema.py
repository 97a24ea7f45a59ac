"""JSON schemas, draft 07, from the CRD's structural schema: of a manifest, for editors that complete and check YAML as it is written, and of the
values of the chart rljob-job, which Helm reads.

python -m rljob_api.schema.json_schema editor FILE
python -m rljob_api.schema.json_schema chart FILE
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.schema.crd import crd

Schema = dict[str, Any]
_KUBERNETES = (
    "x-kubernetes-validations",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "default",
)


def values_schema(structural: Schema) -> Schema:
    """A structural schema as JSON schema. Objects refuse unknown keys, unless they are verbatim or maps, and there are no defaults."""
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


def job_chart() -> Schema:
    """The schema of the chart rljob-job, whose values are a job. `global` is Helm's: a parent chart sets it."""
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "required": ["spec"],
        "properties": {
            "global": {"type": "object"},
            "name": {"type": "string", "maxLength": names.MAX_JOB_NAME},
            "labels": texts,
            "annotations": texts,
            "spec": values_schema(spec),
        },
    }


def manifest_schema() -> Schema:
    """Of a manifest. What Kubernetes itself defines, such as metadata, is left open."""
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": names.KIND,
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": names.API_VERSION},
            "kind": {"const": names.KIND},
            "metadata": {"type": "object"},
            "spec": values_schema(spec),
        },
    }


SCHEMAS: dict[str, tuple[Callable[[], Schema], int]] = {"editor": (manifest_schema, 1), "chart": (job_chart, 2)}
"""Each schema, and by how many blanks it is indented."""

if __name__ == "__main__":
    made, indent = SCHEMAS[sys.argv[1]]
    Path(sys.argv[2]).write_text(json.dumps(made(), indent=indent) + "\n")
