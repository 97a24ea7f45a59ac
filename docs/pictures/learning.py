"""What examples/arithmetic and examples/reasoning-gym learn: curves of three seeds from benchmarks/runs/learning.jsonl and reasoning-gym.jsonl, and
both ends of the runs of docs/asynchronous.md; what a recipe learns from a service: a curve for each seed in benchmarks/runs/recipe.jsonl; and the
first run in benchmarks/runs/long-run.jsonl, on a GPU."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from docs.pictures.svg import Canvas
from docs.pictures.tables import rows

RUNS = Path(__file__).parents[2] / "benchmarks/runs/learning.jsonl"
REASONING_RUNS, RECIPE_RUNS, LONG_RUNS = (
    RUNS.with_name(f"{name}.jsonl") for name in ("reasoning-gym", "recipe", "long-run")
)
WIDTH, HEIGHT = 960, 330
TOP, BOTTOM = 84, 262
STEPS, REASONING_STEPS = 60, 80
"""Of a run."""
SMOOTH = 5
"""Steps whose mean a point of the curve is."""
PANELS = ((70, "reward/mean", SMOOTH), (550, "evaluation/reward", 1))
"""Left edge, metric, how many steps are one point."""
SPAN = 340
"""Pixels from the first to the last step."""
SEEDS = ("trainer", "rollout", "control")
AHEAD = (
    (70, "Mean reward", "first 10 steps", "last 10 steps", 2, 3),
    (550, "Held-out accuracy, greedy", "before", "after 60 steps", 5, 6),
)
"""Left edge, title, names of both ends, their columns in the table."""
RISE = 290
"""Pixels between both ends."""
STALENESS = {"0": "rollout", "2": "trainer"}
"""Colours."""
SETTING = "0.3 M parameters on two CPU cores, GRPO, 60 steps of 16 prompts x 16 samples"
REASONING_SETTING = "0.3 M parameters on two CPU cores, GRPO, 80 steps of 16 prompts x 16 samples"
RECIPE_SETTING = "math_rl of tinker-cookbook, adapters of rank 16, 60 steps of 16 groups x 16 samples"
LONG_SETTING = "126 M parameters on one H200 in 22 minutes, GRPO, 64 prompts x 16 samples a step"
LONG_STEPS = 1500
WIDE_LEFT, WIDE_SPAN = 70, 820
"""Of a panel alone."""

Curves = dict[int, list[tuple[int, float]]]
"""Steps and values, by seed."""


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy of the arithmetic example with three seeds", theme)
    _curves(canvas, RUNS, STEPS, ("Mean reward", "Held-out accuracy, greedy"), SETTING)
    return canvas


def draw_reasoning_gym(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy of the reasoning-gym example with three seeds", theme)
    titles = ("Mean reward", "Held-out reward at temperature 1")
    _curves(canvas, REASONING_RUNS, REASONING_STEPS, titles, REASONING_SETTING)
    return canvas


def _curves(c: Canvas, file: Path, steps: int, titles: tuple[str, str], setting: str) -> None:
    """Of each seed, in two panels. `steps`: of a run."""
    runs = _runs(file)
    for title, (left, metric, smooth) in zip(titles, PANELS, strict=True):
        _panel(c, left, SPAN, steps, title, {run["seed"]: _smoothed(run[metric], smooth) for run in runs})
    _legend(c, _seeds(runs), setting)


def _runs(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def draw_recipe(theme: dict[str, str]) -> Canvas:
    """The share of right answers of the seeds that were measured."""
    canvas = Canvas(WIDTH, HEIGHT, "Share of right answers while a recipe trains against a service", theme)
    runs = _runs(RECIPE_RUNS)
    shares = {run["seed"]: dict(enumerate(run["right"], 1)) for run in runs}
    curves = {seed: _smoothed(right, SMOOTH) for seed, right in shares.items()}
    _panel(canvas, WIDE_LEFT, WIDE_SPAN, STEPS, f"Share of right answers, mean of {SMOOTH} steps", curves)
    _legend(canvas, _seeds(runs), RECIPE_SETTING)
    return canvas


def draw_long_run(theme: dict[str, str]) -> Canvas:
    """The mean reward of every ten steps, and held-out accuracy every hundred."""
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy of a run of 1,500 steps on a GPU", theme)
    run = _runs(LONG_RUNS)[0]
    curves = {
        0: [(10 * ten, reward) for ten, reward in enumerate(run["rewards"][: LONG_STEPS // 10], 1)],
        1: [(int(step), accuracy) for step, accuracy in run["held_out"].items()],
    }
    _panel(canvas, WIDE_LEFT, WIDE_SPAN, LONG_STEPS, "Share of right answers", curves, every=300)
    _legend(canvas, {"samples": SEEDS[0], "held out, greedy": SEEDS[1]}, LONG_SETTING)
    return canvas


def _seeds(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Colours by name."""
    return {f"seed {run['seed']}": SEEDS[run["seed"]] for run in runs}


def _panel(c: Canvas, left: int, span: int, steps: int, title: str, curves: Curves, every: int = 20) -> None:
    """`curves`: by seed. `every`: steps from one label to the next."""
    _grid(c, left, title, span)
    for step in range(0, steps + 1, every):
        c.text(left + span * step / steps, BOTTOM + 20, f"step {step}", 12, "muted", "middle")
    for seed, points in curves.items():
        _curve(c, [(left + span * step / steps, _height(value)) for step, value in points], SEEDS[seed])
    _ends(c, left + span + 12, {SEEDS[seed]: points[-1][1] for seed, points in curves.items()})


def _smoothed(curve: Mapping[Any, float], count: int) -> list[tuple[int, float]]:
    """Steps with the mean of the last `count` values."""
    values = list(curve.values())
    return [(int(step), mean(values[max(0, i - count + 1) : i + 1])) for i, step in enumerate(curve)]


def _curve(c: Canvas, places: list[tuple[float, float]], colour: str) -> None:
    for (x1, y1), (x2, y2) in pairwise(places):
        c.line(x1, y1, x2, y2, colour, 2.2)
    for x, y in places if len(places) < 10 else places[-1:]:
        c.dot(x, y, 4, colour, colour)


def _ends(c: Canvas, x: float, values: dict[str, float]) -> None:
    """Figures next to the last points, from the top down, none over another. `values`: by colour."""
    above = 0.0
    for value, colour in sorted(((value, colour) for colour, value in values.items()), reverse=True):
        above = max(_height(value) + 4, above + 15)
        c.text(x, above, f"{value:.2f}", 13, colour, bold=True)


def _grid(c: Canvas, left: int, title: str, span: int) -> None:
    c.text(left - 46, 34, title, 16, bold=True)
    for tenth in range(0, 11, 2):
        y = _height(tenth / 10)
        c.line(left, y, left + span, y)
        c.text(left - 12, y + 4, f"{tenth / 10:.1f}", 12, "muted", "end")


def draw_ahead(theme: dict[str, str]) -> Canvas:
    """The same with generation two steps ahead, and without."""
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy with staleness 0 and 2", theme)
    for panel in AHEAD:
        _axes(canvas, panel)
        for row in rows("asynchronous.md", "What it costs in learning"):
            _rise(canvas, panel, row, STALENESS[row[1]])
    _legend(canvas, {f"staleness {n}": colour for n, colour in STALENESS.items()}, SETTING)
    return canvas


def _legend(c: Canvas, colours: dict[str, str], setting: str) -> None:
    for i, (name, colour) in enumerate(colours.items()):
        c.dot(24 + 110 * i, 312, 5, colour, colour)
        c.text(36 + 110 * i, 317, name, 13, "muted")
    c.text(WIDTH - 20, 317, setting, 13, "muted", "end")


def _axes(c: Canvas, panel: tuple[int, str, str, str, int, int]) -> None:
    x, title, first, last, _, _ = panel
    _grid(c, x, title, RISE)
    c.text(x, 68, first, 13, "muted", "middle")
    c.text(x + RISE, 68, last, 13, "muted", "middle")


def _rise(c: Canvas, panel: tuple[int, str, str, str, int, int], row: list[str], colour: str) -> None:
    """A line between both ends of a row."""
    x, begin, end = panel[0], float(row[panel[4]]), float(row[panel[5]])
    c.line(x, _height(begin), x + RISE, _height(end), colour, 2.5)
    c.dot(x, _height(begin), 4.5, colour, colour)
    c.dot(x + RISE, _height(end), 4.5, colour, colour)


def _height(value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value
