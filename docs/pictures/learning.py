"""What examples/arithmetic learns, with three seeds: the recorded figures of docs/evidence/cpus.md, and of docs/asynchronous.md."""

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
AHEAD = ((*PANELS[0][:4], 2, 3), (*PANELS[1][:4], 5, 6))
STALENESS = {"0": "rollout", "2": "trainer"}
"""Colours."""
SETTING = "0.3 M parameters on two CPU cores, GRPO, 60 steps of 16 prompts x 16 samples"


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy of the arithmetic example with three seeds", theme)
    table = rows("evidence/cpus.md", "Learning")
    for panel in PANELS:
        _panel(canvas, panel, table)
    _legend(canvas, {f"seed {row[0]}": colour for row, colour in zip(table, SEEDS, strict=True)})
    return canvas


def draw_ahead(theme: dict[str, str]) -> Canvas:
    """The same with generation two steps ahead, and without."""
    canvas = Canvas(WIDTH, HEIGHT, "Reward and held-out accuracy with staleness 0 and 2", theme)
    for panel in AHEAD:
        _axes(canvas, panel)
        for row in rows("asynchronous.md", "What it costs in learning"):
            _rise(canvas, panel, row, STALENESS[row[1]])
    _legend(canvas, {f"staleness {n}": colour for n, colour in STALENESS.items()})
    return canvas


def _legend(c: Canvas, colours: dict[str, str]) -> None:
    for i, (name, colour) in enumerate(colours.items()):
        c.dot(24 + 110 * i, 312, 5, colour, colour)
        c.text(36 + 110 * i, 317, name, 13, "muted")
    c.text(WIDTH - 20, 317, SETTING, 13, "muted", "end")


def _panel(c: Canvas, panel: tuple[int, str, str, str, int, int], table: list[list[str]]) -> None:
    _axes(c, panel)
    ends = sorted((float(row[panel[5]]) for row in table), reverse=True)
    for row, colour in zip(table, SEEDS, strict=True):
        end = _rise(c, panel, row, colour)
        c.text(panel[0] + SPAN + 14, _apart(ends, end), f"{end:.2f}", 13, colour, bold=True)


def _axes(c: Canvas, panel: tuple[int, str, str, str, int, int]) -> None:
    x, title, first, last, _, _ = panel
    c.text(x - 46, 34, title, 16, bold=True)
    for tenth in range(0, 11, 2):
        y = _height(tenth / 10)
        c.line(x, y, x + SPAN, y)
        c.text(x - 12, y + 4, f"{tenth / 10:.1f}", 12, "muted", "end")
    c.text(x, 68, first, 13, "muted", "middle")
    c.text(x + SPAN, 68, last, 13, "muted", "middle")


def _rise(c: Canvas, panel: tuple[int, str, str, str, int, int], row: list[str], colour: str) -> float:
    """A line between both ends of a row; the value at its end."""
    x, begin, end = panel[0], float(row[panel[4]]), float(row[panel[5]])
    c.line(x, _height(begin), x + SPAN, _height(end), colour, 2.5)
    c.dot(x, _height(begin), 4.5, colour, colour)
    c.dot(x + SPAN, _height(end), 4.5, colour, colour)
    return end


def _apart(ends: list[float], end: float) -> float:
    """Base line of a figure: where its dot is, moved so that two figures never overlap."""
    middle = sum(map(_height, ends)) / len(ends)
    return middle + 17 * (ends.index(end) - 1) + 4


def _height(value: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value
