"""The CRD is generated, structural and small."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.schema import crd

ROOT = Path(__file__).parents[2]
SCHEMA = crd.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, dict):
            yield from nodes(child)


def test_the_file_is_what_the_models_say() -> None:
    assert (ROOT / "crds/rljob.yaml").read_text() == crd.render(), "run `make generate`"


def test_a_null_is_a_field_that_is_not_written_as_for_the_api_server() -> None:
    nulls = {"env": None, "critic": None, "trainer": {"parallelism": None, "template": {"nodeSelector": None}}}
    assert validate(raw_spec(**nulls), "demo").violations == validate(raw_spec(trainer={}), "demo").violations
    assert [v.field for v in validate(raw_spec(data={"surprise": None}), "demo").violations] == ["spec.data.surprise"]
    (missing,) = validate(raw_spec(checkpoint=None), "demo").violations
    assert (missing.field, missing.rule) == ("spec.checkpoint", "is required")


def test_types_are_those_of_the_api_server() -> None:
    given = raw_spec(
        suspend="yes", trainer={"device": "cpu", "nodes": "2"}, train={"optimizer": {"learningRate": "1e-6"}}
    )
    assert sorted(v.field for v in validate(given, "demo").violations) == [
        "spec.suspend",
        "spec.train.optimizer.learningRate",
        "spec.trainer.nodes",
    ]


def test_it_fits_the_annotation_of_a_client_side_apply() -> None:
    annotation = json.dumps(crd.crd(), separators=(",", ":"))
    assert len(re.sub("[<>&]", "u003c__", annotation)) < 192 * 1024  # kubectl escapes these, and the limit is 256 KiB


def test_every_node_has_a_type_and_no_reference() -> None:
    for node in nodes(SCHEMA):
        forbidden = {"$ref", "anyOf", "const", "title", "patternProperties", "propertyNames"} & node.keys()
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}]
            assert forbidden == {"anyOf"}
        else:
            assert "type" in node
            assert not forbidden


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_is_described(part: str) -> None:
    for node in nodes(SCHEMA["properties"][part]):
        for name, field in node.get("properties", {}).items():
            assert field.get("description"), name


def test_nothing_in_the_status_has_a_default_or_is_required() -> None:
    """But that nobody has seen the job yet, until somebody has."""
    status = SCHEMA["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    for node in nodes(status):
        assert node is status or "default" not in node
        assert "required" not in node


def own_defaults(schema: dict[str, Any], given: Any) -> Any:
    """The fields that are given, each with its own default."""
    if "properties" not in schema:
        return schema["default"]
    return {name: own_defaults(schema["properties"][name], inner) for name, inner in given.items()}


def test_a_field_has_one_default_whether_its_section_is_written_or_not() -> None:
    """Else a critic that is given `optimizer: {warmupSteps: 5}` would lose its learning rate, and an evaluation with `maxTokens` its temperature."""
    for node in nodes(SCHEMA["properties"]["spec"]):
        if "properties" in node and "default" in node:
            assert own_defaults(node, node["default"]) == node["default"]
    spec = make_spec(critic={"optimizer": {"warmupSteps": 5}}, evaluation={"sampling": {"maxTokens": 4}})
    assert spec.critic and spec.critic.optimizer.learning_rate == 1e-5
    assert spec.evaluation.sampling.temperature == 0
