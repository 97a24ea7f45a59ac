"""The dashboards ask for metrics that exist, by labels that they have."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from benchmarks import dashboards
from chart.chart import CHART, HELM, NO_HELM, render
from rljob_api.metrics import METRICS
from rljob_operator.endpoints import Metrics
from rljob_operator.kube.api import Key
from simulator.scraping import samples
from simulator.world import World

FILES = {path.stem: path for path in (CHART / "files" / "dashboards").glob("*.json")}


JOBS = json.loads(FILES["jobs"].read_text())
NOTES = JOBS["annotations"]["list"]


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
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (note["expr"] for note in dashboard.get("annotations", {}).get("list", ()))
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
    assert {m for m in await exported() if m.startswith("rljob_job")} <= shown


def words(expression: str) -> set[str]:
    return set(re.findall(r"\brljob_[a-z_]+\b", expression))


@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not on PATH")
def test_a_prometheus_that_has_recorded_runs_answers_every_panel(tmp_path: Path) -> None:
    with dashboards.prometheus(tmp_path) as url:
        found = dashboards.answers(url)
        notes = {note["name"]: dashboards.ask(url, note["expr"], False) for note in NOTES}
    for panel in json.loads(FILES["jobs"].read_text())["panels"]:
        assert panel["type"] == "row" or any(found[panel["id"]]), panel["title"]
    assert notes["Restarts"] == [], "no recorded run was restarted"
    state, *_ = found[1]
    assert {series["metric"]["rljob"]: series["value"][1] for series in state} == {
        "arithmetic": "7",  # Succeeded
        "dpo": "7",
        "rewarded": "3",  # Running
    }
    (left,) = [s for s in found[1][3] if s["metric"]["rljob"] == "rewarded"]
    assert 30 < float(left["value"][1]) < 120


PROMETHEUS_NOTE = {"step", "useValueForTime", "titleFormat", "textFormat", "tagKeys"}
"""What Grafana's data source for Prometheus adds to an annotation."""


@pytest.mark.parametrize("name", ["jobs", "operator"])
def test_every_field_is_one_of_grafanas_own_types(name: str) -> None:
    """Those of Grafana 11.6 drop what they do not know. Panels have the types of their kind."""
    register_default_plugins()
    written = json.loads(FILES[name].read_text())
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(written)))
    unknown = list(dropped(written, known))
    assert {path.rpartition(".")[2] for path in unknown if path.startswith("annotations.")} <= PROMETHEUS_NOTE
    assert [path for path in unknown if not path.startswith("annotations.")] == []


def dropped(written: Any, known: Any, path: str = "") -> Iterator[str]:
    """Paths of what `written` has and `known` lacks or has otherwise."""
    if isinstance(written, dict) and isinstance(known, dict):
        for key, value in written.items():
            inner = f"{path}.{key}".removeprefix(".")
            yield from dropped(value, known[key], inner) if key in known else [inner]
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        for number, (value, other) in enumerate(zip(written, known, strict=True)):
            yield from dropped(value, other, f"{path}[{number}]")
    elif written != known:
        yield path


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


def test_jobs_are_shown_in_rows_that_each_begin_where_the_one_before_ends() -> None:
    rows = {p["title"]: p["gridPos"]["y"] for p in JOBS["panels"] if p["type"] == "row"}
    assert list(rows) == ["Progress", "Learning", "Speed", "Health", "Cost"] and sorted(rows.values()) == [
        *rows.values()
    ]
    assert JOBS["panels"][0]["type"] == "row" and all(not p.get("panels") for p in JOBS["panels"])
    bottom = 0
    for panel in JOBS["panels"]:
        assert panel["gridPos"]["y"] >= bottom or panel["gridPos"]["x"], panel["title"]
        bottom = max(bottom, panel["gridPos"]["y"] + panel["gridPos"]["h"]) if panel["type"] == "row" else bottom


def test_the_name_of_a_job_in_the_table_leads_to_that_job_alone() -> None:
    (table,) = [p for p in JOBS["panels"] if p["type"] == "table"]
    names = set(table["transformations"][1]["options"]["renameByName"].values())
    (url,) = [
        link["url"]
        for override in table["fieldConfig"]["overrides"]
        for setting in override["properties"]
        if setting["id"] == "links"
        for link in setting["value"]
    ]
    variables = {variable["name"] for variable in JOBS["templating"]["list"]}
    assert url.startswith(f"/d/{JOBS['uid']}?") and set(re.findall(r"var-(\w+)=", url)) == variables
    assert set(re.findall(r"__data\.fields\.(\w+)", url)) <= names


@pytest.mark.parametrize("name", ["jobs", "operator"])
def test_dashboards_link_to_each_other(name: str) -> None:
    known = {json.loads(file.read_text())["uid"] for file in FILES.values()}
    dashboard = json.loads(FILES[name].read_text())
    assert {link["url"] for link in dashboard["links"]} == {f"/d/{uid}" for uid in known - {dashboard["uid"]}}


def test_panels_of_many_lines_are_repeated_by_job_and_say_whose_they_are() -> None:
    repeated = [p for p in JOBS["panels"] if "repeat" in p]
    assert {p["title"] for p in repeated} == {"Where a step's time goes: $rljob", "Peak memory by phase: $rljob"}
    variables = {variable["name"] for variable in JOBS["templating"]["list"]}
    assert all(p["repeat"] in variables and p["gridPos"]["w"] == 24 for p in repeated)
