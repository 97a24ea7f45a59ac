"""The JSON schema of an RLJob, for editors that complete and check YAML as it is written: draft 07, from the CRD's structural schema.

python -m rljob_api.schema.editor FILE
"""

import json
import sys
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.schema.crd import crd
from rljob_api.schema.values import values_schema


def schema() -> dict[str, Any]:
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


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(schema(), indent=1) + "\n")
