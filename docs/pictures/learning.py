"""What examples/arithmetic learns, with three seeds: the recorded figures of docs/measurements.md."""

from docs.pictures.svg import Canvas
from docs.pictures.tables import rows

WIDTH, HEIGHT = 960, 330
TOP, BOTTOM = 84, 262
PANELS = (
    (70, "Mean reward", "first 10 steps", "last 10 steps", 1, 2),
    (550, "Held-out accuracy, greedy", "before", "after 60 steps", 4, 5),
)
"""Left edge, title, names of both ends, their columns in the table."""
SPAN = 290
"""Pixels between both ends."""
SEEDS = ("trainer", "rollout", "control")


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy of the arithmetic example with three seeds", theme)
    table = rows("measurements.md", "Learning")
    for panel in PANELS:
        _panel(canvas, panel, table)
    for i, (row, colour) in enumerate(zip(table, SEEDS, strict=True)):
        canvas.dot(24 + 90 * i, 312, 5, colour, colour)
        canvas.text(36 + 90 * i, 317, f"seed {row[0]}", 13, "muted")
    canvas.text(
        WIDTH - 20,
        317,
        "0.3 M parameters on two CPU cores, GRPO, 60 steps of 16 prompts x 16 samples",
        13,
        "muted",
        "end",
    )
    return canvas


def _panel(c: Canvas, panel: tuple[int, str, str, str, int, int], table: list[list[str]]) -> None:
    x, title, first, last, before, after = panel
    c.text(x - 46, 34, title, 16, bold=True)
    for tenth in range(0, 11, 2):
        y = _height(tenth / 10)
        c.line(x, y, x + SPAN, y)
        c.text(x - 12, y + 4, f"{tenth / 10:.1f}", 12, "muted", "end")
    c.text(x, 68, first, 13, "muted", "middle")
    c.text(x + SPAN, 68, last, 13, "muted", "middle")
    ends = sorted((float(row[after]) for row in table), reverse=True)
    for row, colour in zip(table, SEEDS, strict=True):
        begin, end = float(row[before]), float(row[after])
        c.line(x, _height(begin), x + SPAN, _height(end), colour, 2.5)
        c.dot(x, _height(begin), 4.5, colour, colour)
        c.dot(x + SPAN, _height(end), 4.5, colour, colour)
        c.text(x + SPAN + 14, _apart(ends, end), f"{end:.2f}", 13, colour, bold=True)


def _apart(ends: list[float], end: float) -> float:
    """Base line of a figure: where its dot is, moved so that two figures never overlap."""
    middle = sum(map(_height, ends)) / len(ends)
    return middle + 17 * (ends.index(end) - 1) + 4


def _height(value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value
