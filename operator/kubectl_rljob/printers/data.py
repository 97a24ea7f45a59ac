"""`-o json` and `-o yaml`: the data, with control characters escaped, so that nothing is lost and no terminal interprets them."""

import json
from typing import Any

import yaml

from kubectl_rljob.terminal import CONTROL


def render(value: Any, output: str) -> str:
    text = json.dumps(value, indent=4, ensure_ascii=False)
    if output == "json":
        return CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)
    readable = CONTROL.search(text) is None
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=readable, width=160).rstrip()


def without_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """As kubectl prints an object."""
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}
