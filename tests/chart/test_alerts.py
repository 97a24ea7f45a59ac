"""The alerts of the chart: what they ask for is exported, they are explained, and Prometheus's own tool fires them as the page says."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from chart.chart import HELM, NO_HELM, ROOT, render
from chart.test_dashboards import exported
from rljob_api.status import State

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)
ENABLED = "metrics.prometheusRule.enabled=true"
PAGE = ROOT / "docs" / "alerts.md"
PROMTOOL = shutil.which("promtool")
SCRAPED = {"namespace", "job"}
"""Labels that Prometheus adds of what it reads."""


def alerts(*sets: str) -> dict[str, dict[str, Any]]:
    rule = render(ENABLED, *sets)[("PrometheusRule", "rljob")]
    (group,) = rule["spec"]["groups"]
    return {alert["alert"]: alert for alert in group["rules"]}


def test_they_are_installed_on_request_only_with_the_labels_that_prometheus_selects() -> None:
    assert ("PrometheusRule", "rljob") not in render()
    rule = render(ENABLED, "metrics.prometheusRule.labels.release=prometheus")[("PrometheusRule", "rljob")]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["metadata"]["namespace"] == "rljob-system"


async def test_every_alert_asks_for_metrics_and_labels_that_are_exported() -> None:
    known = await exported()
    for name, alert in alerts().items():
        asked = re.findall(r"\b(rljob_[a-z_]+)\b(?:\{([^}]*)\})?", alert["expr"])
        assert asked, name
        for metric, selector in asked:
            assert metric in known, name
            assert set(re.findall(r"(\w+)\s*=", selector)) <= known[metric] | SCRAPED, name
        joined = re.findall(r"on \(([^)]*)\)", alert["expr"])
        assert {label for labels in joined for label in labels.split(", ")} <= known["rljob_job_state"], name


def test_every_state_that_is_asked_for_is_one_of_a_job() -> None:
    states = {state for alert in alerts().values() for state in re.findall(r'state="(\w+)"', alert["expr"])}
    assert states and states <= set(get_args(State))


def test_every_alert_says_what_happened_and_has_its_heading_on_the_page() -> None:
    assert re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE) == list(alerts())
    for alert in alerts().values():
        assert alert["annotations"].keys() == {"summary", "description"}
        used = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        assert used <= {"namespace", "rljob"}


def test_thresholds_come_from_the_values() -> None:
    found = alerts(
        "metrics.prometheusRule.pendingFor=3h",
        "metrics.prometheusRule.stalledFor=2h",
        "metrics.prometheusRule.checkpointAgeSeconds=1000000",
    )
    assert (found["RLJobPending"]["for"], found["RLJobStalled"]["for"]) == ("3h", "2h")
    assert " > 1000000 " in found["RLJobCheckpointTooOld"]["expr"]


def test_the_alert_about_the_operator_looks_for_the_one_of_its_release() -> None:
    rule = render(ENABLED, "fullnameOverride=research")[("PrometheusRule", "research")]
    (expression,) = [a["expr"] for a in rule["spec"]["groups"][0]["rules"] if a["alert"] == "RLJobOperatorDown"]
    assert expression == 'absent(rljob_operator_leader{namespace="rljob-system", job="research"} == 1)'


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, which comes with Prometheus, is not on PATH")
def test_promtool_fires_them_when_the_page_says(tmp_path: Path) -> None:
    assert PROMTOOL
    rule = render(ENABLED)[("PrometheusRule", "rljob")]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    shutil.copy(Path(__file__).with_name("alerts.yaml"), tmp_path)
    result = subprocess.run([PROMTOOL, "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
