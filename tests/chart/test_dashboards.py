"""The dashboards ask for metrics that exist, by labels that they have."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import dashboards
from chart.chart import CHART, HELM, NO_HELM, render
from rljob_api.metrics import METRICS
from rljob_operator.kube.api import Key
from rljob_operator.metrics import Metrics
from simulator.scraping import samples
from simulator.world import World

FILES = {path.stem: path for path in (CHART / "files" / "dashboards").glob("*.json")}


async def exported() -> dict[str, set[str]]:
    """Names of what Prometheus reads of an operator that has a job, with their labels."""
    world = World(steps=8)
    world.install_gpus(4)
    world.apply(
        trainer={"device": "gpu"},
        pools=[{"name": "judge", "model": "/data/judge"}],
        rewards=[{"vllm": {"pool": "judge"}}],
        algorithm={"kl": {"coefficient": 0.1}},
        reference={"processesPerNode": 1},
    )
    await world.until(state="Running", step=6)
    world.feed.deliver()

    async def nothing(_: Key) -> float | None:
        return None

    metrics = Metrics(world.feed.cache, {("GET", "Pod"): 1}, lambda: 0.0, {})
    await metrics.timed(nothing)(("research", "demo"))
    found: dict[str, set[str]] = {"rljob_job_metric": {"namespace", "rljob", "metric"}}
    for sample in samples(metrics):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")


def test_there_is_one_for_the_operator_and_one_for_jobs() -> None:
    assert sorted(FILES) == ["jobs", "operator"]


@pytest.mark.parametrize("name", ["jobs", "operator"])
async def test_every_query_names_metrics_and_labels_that_are_exported(name: str) -> None:
    known = await exported()
    for expression in expressions(json.loads(FILES[name].read_text())):
        asked = re.findall(r"\b(rljob_[a-z_]+)\b(?:\{([^}]*)\})?", expression)
        assert asked, expression
        for metric, selector in asked:
            assert metric in known, expression
            assert set(re.findall(r"(\w+)\s*=", selector)) <= known[metric], expression


async def test_everything_that_is_exported_of_jobs_is_shown_or_makes_an_alert() -> None:
    shown = {m for file in FILES.values() for e in expressions(json.loads(file.read_text())) for m in words(e)}
    shown |= words((CHART / "templates" / "alerts.yaml").read_text())
    assert {m for m in await exported() if m.startswith("rljob_job")} - {"rljob_job_attempt"} <= shown


def words(expression: str) -> set[str]:
    return set(re.findall(r"\brljob_[a-z_]+\b", expression))


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not on PATH")
def test_a_prometheus_that_has_recorded_runs_answers_every_panel(tmp_path: Path) -> None:
    with dashboards.prometheus(tmp_path) as url:
        found = dashboards.answers(url)
    for panel in json.loads(FILES["jobs"].read_text())["panels"]:
        assert any(found[panel["id"]]), panel["title"]
    state, *_ = found[1]
    assert {series["metric"]["rljob"]: series["value"][1] for series in state} == {
        "arithmetic": "7",  # Succeeded
        "dpo": "7",
        "rewarded": "3",  # Running
    }
    (left,) = [s for s in found[1][3] if s["metric"]["rljob"] == "rewarded"]
    assert 30 < float(left["value"][1]) < 120


def test_no_panel_mixes_units() -> None:
    """A fraction next to a length would be a line at 0."""
    fractions = {name for name, meaning in METRICS.items() if "raction of" in meaning}
    for panel in json.loads(FILES["jobs"].read_text())["panels"]:
        if panel["type"] == "timeseries":
            asked = {m for t in panel["targets"] for m in re.findall(r'metric="([^"]+)"', t["expr"])}
            assert asked <= fractions or not asked & fractions, panel["title"]
            assert bool(asked & fractions) <= (panel["fieldConfig"]["defaults"]["unit"] == "percentunit")


def test_step_metrics_are_named_as_in_the_table() -> None:
    asked = [
        m for e in expressions(json.loads(FILES["jobs"].read_text())) for m in re.findall(r'metric=~?"([^"]+)"', e)
    ]
    assert len(asked) > 10
    for pattern in asked:
        assert any(re.fullmatch(pattern, metric) for metric in METRICS), pattern


@pytest.mark.parametrize("name", ["jobs", "operator"])
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = json.loads(FILES[name].read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(x, y) for p in panels for g in [p["gridPos"]] for x in range(g["x"], g["x"] + g["w"]) for y in [g["y"]]]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_grafanas_sidecar_finds_them() -> None:
    objects = render(
        "dashboards.enabled=true", "dashboards.namespace=monitoring", "dashboards.annotations.folder=rljob"
    )
    for name, file in FILES.items():
        found = objects[("ConfigMap", f"rljob-dashboard-{name}")]
        assert found["metadata"]["namespace"] == "monitoring"
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"folder": "rljob"}
        assert json.loads(found["data"][f"rljob-{name}.json"]) == json.loads(file.read_text())
