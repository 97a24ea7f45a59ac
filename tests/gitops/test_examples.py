"""The manifests of examples/gitops."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from chart.chart import HELM, NO_HELM, helm
from gitops.argocd import health
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.status import ConditionType

EXAMPLES = Path(__file__).parents[2] / "examples" / "gitops"


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


def test_the_job_breaks_no_rule() -> None:
    (job,) = documents("job/rljob.yaml")
    assert validate(job["spec"], job["metadata"]["name"]).violations == ()


def test_the_jobs_of_a_chain_are_in_waves_in_which_the_first_has_to_succeed() -> None:
    parts = documents("chain/kustomization.yaml")[0]["resources"]
    jobs = [documents(f"chain/{part}/rljob.yaml")[0] for part in parts]
    waves = [int(job["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) for job in jobs]
    assert waves == sorted(set(waves))
    running = {"observedGeneration": 1, "state": "Running", "conditions": []}
    assert (
        health(jobs[0] | {"metadata": jobs[0]["metadata"] | {"generation": 1}, "status": running})[0] == "Progressing"
    )


def test_flux_applies_the_second_job_of_a_chain_when_the_first_has_the_condition() -> None:
    first, second = documents("flux/chain.yaml")
    assert second["spec"]["dependsOn"] == [{"name": first["metadata"]["name"]}]
    (check,) = first["spec"]["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == (names.API_VERSION, names.KIND)
    asked = re.findall(r"c.type == '(\w+)'", check["current"] + check["failed"])
    assert set(asked) <= set(get_args(ConditionType)) and len(asked) == 2
    for kustomization in (first, second):
        assert (EXAMPLES / kustomization["spec"]["path"] / "kustomization.yaml").is_file()


def test_the_tools_point_to_directories_that_exist() -> None:
    root = EXAMPLES.parents[1]
    (operator,), (job,) = documents("argocd/operator.yaml"), documents("argocd/job.yaml")
    (chain,) = documents("argocd/chain.yaml")
    release, kustomization = documents("flux/operator.yaml")[1], documents("flux/job.yaml")[1]
    charts = operator["spec"]["source"]["path"], release["spec"]["chart"]["spec"]["chart"]
    jobs = job["spec"]["source"]["path"], chain["spec"]["source"]["path"], kustomization["spec"]["path"]
    assert all((root / chart / "Chart.yaml").is_file() for chart in charts)
    assert all((EXAMPLES / path / "kustomization.yaml").is_file() for path in jobs)
    assert all((EXAMPLES / "job" / name).is_file() for name in documents("job/kustomization.yaml")[0]["resources"])


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_takes_their_values() -> None:
    argo = documents("argocd/operator.yaml")[0]["spec"]["source"]["helm"]["valuesObject"]
    flux = documents("flux/operator.yaml")[1]["spec"]["values"]
    assert argo == flux
    sets = [f"image.{key}={value}" for key, value in flux["image"].items()]
    assert list(flux) == ["image"] and helm(*sets).returncode == 0
