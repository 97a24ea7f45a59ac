"""The chart that makes a job of Helm values."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.chart import HELM, KUBERNETES_VERSION, NO_HELM, ROOT
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.schema.files import job_chart

CHART = ROOT / "charts" / "rljob-job"
EXAMPLES = sorted((ROOT / "examples").glob("*/rljob.yaml"))
needs_helm = pytest.mark.skipif(HELM is None, reason=NO_HELM)


def helm(values: dict[str, Any], tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    assert HELM
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    command = [HELM, "template", "demo", str(CHART), "-n", "research", "--kube-version", KUBERNETES_VERSION]
    return subprocess.run(
        [*command, "-f", str(tmp_path / "values.yaml"), *more], capture_output=True, text=True, timeout=60
    )


def job(values: dict[str, Any], tmp_path: Path, *more: str) -> dict[str, Any]:
    result = helm(values, tmp_path, *more)
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


def spec_of(example: Path) -> dict[str, Any]:
    found: dict[str, Any] = next(o for o in yaml.safe_load_all(example.read_text()) if o["kind"] == names.KIND)["spec"]
    return found


def test_the_schema_is_that_of_the_crd() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == job_chart(), "run `make generate`"


@needs_helm
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_spec_of_every_example_passes_through_as_it_is(example: Path, tmp_path: Path) -> None:
    spec = spec_of(example)
    made = job({"spec": spec, "labels": {"team": "a"}}, tmp_path)
    assert (made["apiVersion"], made["kind"]) == (names.API_VERSION, names.KIND)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("demo", "research")
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["spec"] == spec
    assert validate(made["spec"], "demo").violations == ()


@needs_helm
def test_a_command_line_changes_a_value_and_large_numbers_stay_whole(tmp_path: Path) -> None:
    values = {"spec": spec_of(EXAMPLES[0]), "name": "mine"}
    made = job(values, tmp_path, "--set", "spec.train.steps=1000000")
    assert (made["metadata"]["name"], made["spec"]["train"]["steps"]) == ("mine", 1000000)


@needs_helm
def test_helm_refuses_what_the_spec_does_not_have(tmp_path: Path) -> None:
    spec = spec_of(EXAMPLES[0])
    for wrong, said in (
        ({"spec": spec | {"rolout": {}}}, "'rolout' not allowed"),
        ({"spec": spec | {"train": spec["train"] | {"steps": "many"}}}, "/spec/train/steps"),
        ({"spec": {k: v for k, v in spec.items() if k != "checkpoint"}}, "missing property 'checkpoint'"),
        ({}, "missing property 'spec'"),
    ):
        result = helm(wrong, tmp_path)
        assert result.returncode != 0
        assert said in result.stderr


@needs_helm
def test_a_name_that_looks_like_a_number_stays_text_and_own_labels_stay(tmp_path: Path) -> None:
    labels = {"app.kubernetes.io/instance": "mine", "team": "7"}
    made = job({"spec": spec_of(EXAMPLES[0]), "name": "20260101", "labels": labels}, tmp_path, "-n", "1e5")
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("20260101", "1e5")
    assert made["metadata"]["labels"].items() >= {"app.kubernetes.io/instance": "demo", "team": "7"}.items()


@needs_helm
def test_name_labels_and_annotations_that_are_null_are_none(tmp_path: Path) -> None:
    values = {"spec": spec_of(EXAMPLES[0])}
    assert job(values | {"name": None, "labels": None, "annotations": None}, tmp_path) == job(values, tmp_path)
