"""Panels of a dashboard, drawn from its JSON and from what Prometheus answered: rows, tiles, tables, state timelines, time series; no other kind."""

import math
import re
from collections.abc import Iterator
from typing import Any

from docs.pictures.svg import Canvas

COLUMN, ROW, GAP = 50, 30, 8
"""Pixels of a cell of the dashboard's grid, and between two panels."""
COLOURS = ("trainer", "rollout", "good", "control", "bad", "muted")
SUFFIXES = {"percentunit": "%", "s": " s", "bytes": " GB"}
SCALES = {"percentunit": 100.0, "bytes": 1e-9}
Series = dict[str, Any]
Answers = dict[int, list[list[Series]]]


def draw(dashboard: dict[str, Any], found: Answers, span: tuple[float, float], theme: dict[str, str]) -> Canvas:
    panels = [shown for panel in dashboard["panels"] for shown in _repeated(panel, found.get(panel["id"], []))]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) * ROW
    canvas = Canvas(24 * COLUMN, height, dashboard["title"], theme)
    canvas.box(0, 0, canvas.width, height, "surface", radius=0)
    for panel in panels:
        cell = panel["gridPos"]
        x, y, w, h = cell["x"] * COLUMN, cell["y"] * ROW, cell["w"] * COLUMN, cell["h"] * ROW
        if panel["type"] == "row":
            canvas.text(x + 8, y + 22, panel["title"], 16, bold=True)
            continue
        canvas.box(x + GAP / 2, y + GAP / 2, w - GAP, h - GAP, "card", "line", 4)
        canvas.text(x + 16, y + 26, panel["title"], 14, bold=True)
        inside = (x + 16, y + 38, w - 32, h - 52)
        KINDS[panel["type"]](canvas, panel, _of(panel, found[panel["id"]]), inside, span)
    return canvas


def _repeated(panel: dict[str, Any], found: list[list[Series]]) -> Iterator[dict[str, Any]]:
    """Side by side, once for each value of the label that it is repeated by."""
    label = panel.get("repeat")
    values = sorted({one["metric"][label] for several in found for one in several}) if label else []
    cell, wide = panel["gridPos"], panel["gridPos"]["w"] / (len(values) or 1)
    for i, value in enumerate(values):
        title = panel["title"].replace(f"${label}", value)
        yield panel | {"title": title, "value": value, "gridPos": cell | {"x": cell["x"] + i * wide, "w": wide}}
    if not values:
        yield panel


def _of(panel: dict[str, Any], found: list[list[Series]]) -> list[list[Series]]:
    """What a repeated panel shows of all that was answered."""
    if "value" not in panel:
        return found
    return [[one for one in several if one["metric"][panel["repeat"]] == panel["value"]] for several in found]


Inside = tuple[float, float, float, float]
"""Left, top, width and height."""


def _stat(canvas: Canvas, panel: dict[str, Any], found: list[list[Series]], inside: Inside, _: Any) -> None:
    """One number."""
    x, y, w, h = inside
    text = shown(float(found[0][0]["value"][1]), panel["fieldConfig"]["defaults"]["unit"]) if found[0] else "No data"
    canvas.text(x + w / 2, y + h / 2 + 16, text, 30, anchor="middle", bold=True)


def _table(canvas: Canvas, panel: dict[str, Any], found: list[list[Series]], inside: Inside, _: Any) -> None:
    """As the transformations say: one row for each pair of namespace and job, one column for each query."""
    names = panel["transformations"][1]["options"]["renameByName"]
    titles = [names[f"Value #{target['refId']}"] for target in panel["targets"]]
    overrides = [(o["matcher"]["options"], o["properties"][0]) for o in panel["fieldConfig"]["overrides"]]
    units = {name: setting for name, setting in overrides if setting["id"] != "links"}
    columns = [{(s["metric"]["namespace"], s["metric"]["rljob"]): float(s["value"][1]) for s in one} for one in found]
    rows = sorted({key for column in columns for key in column})
    x, y, w, _ = inside
    wide = w / (len(titles) + 2)
    for i, title in enumerate(("Namespace", "Job", *titles)):
        canvas.text(x + i * wide, y + 16, title, 13, "muted")
    for j, key in enumerate(rows):
        cells = [*key, *(_cell(column.get(key), units.get(t, {})) for column, t in zip(columns, titles, strict=True))]
        for i, cell in enumerate(cells):
            canvas.text(x + i * wide, y + 44 + 26 * j, cell, 14)


def _cell(value: float | None, setting: dict[str, Any]) -> str:
    if value is None:
        return ""
    if setting.get("id") == "mappings":
        return str(_words(setting["value"])[f"{value:g}"]["text"])
    return shown(value, setting.get("value", "none"))


def _words(mappings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Text and colour by value."""
    return {value: word for mapping in mappings for value, word in mapping["options"].items()}


def shown(value: float, unit: str) -> str:
    """A value with its unit."""
    suffix = f" {unit.removeprefix('suffix: ')}" if unit.startswith("suffix: ") else SUFFIXES.get(unit, "")
    scaled = value * SCALES.get(unit, 1.0)
    return f"{scaled:,.0f}{suffix}" if abs(scaled) >= 100 else f"{scaled:.3g}{suffix}"


def _timeline(canvas: Canvas, panel: dict[str, Any], found: list[list[Series]], inside: Inside, span: Any) -> None:
    """A row for each series, a bar for each state."""
    words = _words(panel["fieldConfig"]["defaults"]["mappings"])
    x, y, w, h = inside
    (rows,) = found
    for j, one in enumerate(sorted(rows, key=lambda s: str(s["metric"]))):
        top = y + j * h / len(rows)
        canvas.text(x, top + 18, _legend(panel["targets"][0]["legendFormat"], one["metric"]), 13, "muted")
        for start, end, value in _bars(one["values"]):
            word = words[value]
            left, right = (x + 160 + (w - 160) * (at - span[0]) / (span[1] - span[0]) for at in (start, end))
            canvas.parts.append(
                f'<rect x="{left:.1f}" y="{top + 2:.1f}" width="{right - left:.1f}" height="24" fill="{word["color"]}" fill-opacity="0.8"/>'
            )
            if right - left > 8 * len(word["text"]):
                canvas.text((left + right) / 2, top + 19, word["text"], 13, "ink", "middle")


def _bars(values: list[tuple[float, str]]) -> Iterator[tuple[float, float, str]]:
    start, current = values[0]
    for at, value in values[1:]:
        if value != current:
            yield start, at, current
            start, current = at, value
    yield start, values[-1][0], current


def _series(canvas: Canvas, panel: dict[str, Any], found: list[list[Series]], inside: Inside, span: Any) -> None:
    named = [
        (_legend(target["legendFormat"], one["metric"]), [(t, float(v)) for t, v in one["values"]])
        for target, several in zip(panel["targets"], found, strict=True)
        for one in several
    ]
    named = [(name, [(t, v) for t, v in points if math.isfinite(v)]) for name, points in named]
    x, y, w, h = inside
    legend = 18 * min(4, math.ceil(len(named) / 3))
    left, bottom = x + 90, y + h - legend - 8
    low, high = _bounds([v for _, points in named for _, v in points])
    for i in range(4):
        at, value = bottom - (bottom - y) * i / 3, low + (high - low) * i / 3
        canvas.line(left, at, x + w, at)
        canvas.text(left - 8, at + 4, shown(value, panel["fieldConfig"]["defaults"]["unit"]), 12, "muted", "end")
    for i, (name, points) in enumerate(named):
        colour = canvas.theme[COLOURS[i % len(COLOURS)]]
        line = " ".join(
            f"{left + (x + w - left) * (t - span[0]) / (span[1] - span[0]):.1f},{bottom - (bottom - y) * (v - low) / (high - low):.1f}"
            for t, v in points
        )
        dash = ' stroke-dasharray="5 3"' if i >= len(COLOURS) else ""
        canvas.parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        if i < 12:
            at, below = x + (i % 3) * w / 3, bottom + 22 + 18 * (i // 3)
            canvas.line(at, below - 4, at + 14, below - 4, COLOURS[i % len(COLOURS)], 3)
            canvas.text(at + 20, below, name, 12, "muted")
    if not named:
        canvas.text(x + w / 2, y + h / 2, "No data", 14, "muted", "middle")


def _bounds(values: list[float]) -> tuple[float, float]:
    """0 is in sight of what is never negative."""
    low, high = min([0.0, *values]), max([0.0, *values])
    return (low, high) if high > low else (low, low + 1.0)


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form)


KINDS = {"stat": _stat, "table": _table, "state-timeline": _timeline, "timeseries": _series}
