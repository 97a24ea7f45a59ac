"""`-o json` and `-o yaml`."""

import argparse
import json
from typing import Any

import yaml

FORMATS = ("json", "yaml")


def add_output_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=FORMATS, help="print the data instead of a page for people")


def render(value: Any, output: str) -> str:
    if output == "json":
        return json.dumps(value, indent=4, ensure_ascii=False)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=160).rstrip()


def without_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """As kubectl prints an object."""
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}
