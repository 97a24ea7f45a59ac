"""The manifests of examples/gitops."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.chart import HELM, NO_HELM, helm
from rljob_api.validation import validate

EXAMPLES = Path(__file__).parents[2] / "examples" / "gitops"


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


def test_the_job_breaks_no_rule() -> None:
    (job,) = documents("job/rljob.yaml")
    assert validate(job["spec"], job["metadata"]["name"]).violations == ()


def test_the_tools_point_to_directories_that_exist() -> None:
    root = EXAMPLES.parents[1]
    (operator,), (job,) = documents("argocd/operator.yaml"), documents("argocd/job.yaml")
    release, kustomization = documents("flux/operator.yaml")[1], documents("flux/job.yaml")[1]
    charts = operator["spec"]["source"]["path"], release["spec"]["chart"]["spec"]["chart"]
    jobs = job["spec"]["source"]["path"], kustomization["spec"]["path"]
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
