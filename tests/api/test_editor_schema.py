"""The schema with which editors complete and check manifests."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from api.specs import raw_spec
from rljob_api.schema.files import manifest_schema

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/reference/rljob.schema.json"
CHECK = jsonschema.Draft7Validator(manifest_schema())
HEAD = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "demo"}}


def jobs(file: Path) -> list[dict[str, Any]]:
    """Objects of a file that holds nothing but RLJobs; empty for another."""
    found = [o for o in yaml.safe_load_all(file.read_text()) if o]
    return found if all(o.get("kind") == "RLJob" for o in found) else []


EXAMPLES = [file for file in sorted((ROOT / "examples").rglob("*.yaml")) if jobs(file)]


def test_the_file_is_what_the_spec_says() -> None:
    assert json.loads(FILE.read_text()) == manifest_schema(), "run `make generate`"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_example_names_the_schema_and_fits_it(file: Path) -> None:
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text())
    assert named and os.path.normpath(file.parent / named[1]) == str(FILE)
    for found in jobs(file):
        CHECK.validate(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainr": {}}, "'trainr' was unexpected"),
        ({"train": {"stepz": 1}}, "'stepz' was unexpected"),
        ({"train": {"steps": "many"}}, "'many' is not of type 'integer'"),
        ({"algorithm": {"advantage": "grpoo"}}, "'grpoo' is not one of"),
    ],
)
def test_an_editor_marks_a_wrong_word_where_it_stands(change: dict[str, Any], said: str) -> None:
    (error,) = CHECK.iter_errors(HEAD | {"spec": raw_spec(**change)})
    assert said in error.message and error.absolute_path[0] == "spec"


def test_fields_are_explained() -> None:
    spec = manifest_schema()["properties"]["spec"]["properties"]
    assert all(field.get("description") for field in spec.values())
