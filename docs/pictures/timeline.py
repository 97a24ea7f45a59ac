"""Steps on a timeline, to scale: the GRPO step that docs/evidence/gpus.md measured on H200 GPUs."""

from dataclasses import dataclass

from docs.pictures.svg import Canvas
from docs.pictures.tables import rows

WIDTH, HEIGHT = 960, 530
LEFT, SCALE, STEPS, LANE = 176, 10.2, 3, 34
"""`SCALE`: pixels of a second; `LANE`: height."""
SEEN = 74
"""Seconds that are shown."""


@dataclass(frozen=True)
class Measured:
    """Seconds of a step's parts."""

    generate: float
    train: float
    sync: float


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Steps on a timeline with staleness 0, staleness 1 and colocated rollouts", theme)
    table = rows("evidence/gpus.md", "A whole GRPO step")
    at = next(i for i, row in enumerate(table) if row[0].startswith("separate"))
    separate = Measured(float(table[at + 1][3]), float(table[at + 1][4]), float(table[at][5]))
    one = next(row for row in table if row[0] == "colocated, one GPU (E)")
    colocated = Measured(float(one[3]), float(one[4]), float(one[5]))
    axis(canvas)
    apart(canvas, 44, separate)
    ahead(canvas, 194, separate)
    shared(canvas, 344, colocated)
    legend(canvas)
    return canvas


def axis(c: Canvas) -> None:
    for second in range(0, SEEN, 10):
        x = LEFT + SCALE * second
        c.line(x, 24, x, 436)
        c.text(x, 454, f"{second} s" if second else "0", 12, "muted", "middle")


def heading(c: Canvas, y: float, title: str, note: str, lanes: tuple[str, ...]) -> None:
    c.box(0, y - 24, WIDTH, 26, "surface", radius=4)
    c.text(10, y - 6, title, 15, bold=True)
    c.text(WIDTH - 10, y - 6, note, 13, "muted", "end")
    for i, name in enumerate(lanes):
        c.text(10, y + 38 + i * (LANE + 8), name, 13, "muted")


def part(c: Canvas, lane_y: float, start: float, seconds: float, role: str, words: str) -> float:
    """Returns when it ends."""
    x, end = LEFT + SCALE * start, min(start + seconds, SEEN)
    if end > start:
        c.box(x, lane_y, SCALE * (end - start) - 1, LANE, f"{role}-soft", role, 4)
        if SCALE * (end - start) > 70:
            c.text(x + SCALE * (end - start) / 2, lane_y + 22, words, 13, role, "middle")
    return start + seconds


def sync(c: Canvas, lane_y: float, start: float, seconds: float, lanes: int = 1) -> float:
    x = LEFT + SCALE * start
    c.box(x, lane_y - 3, max(4.0, SCALE * seconds), LANE * lanes + 8 * (lanes - 1) + 6, "control", radius=2)
    return start + max(seconds, 5 / SCALE)


def apart(c: Canvas, y: float, m: Measured) -> None:
    heading(c, y, "staleness: 0", "measured, one GPU each", ("rollout GPU", "trainer GPU"))
    now, top = 0.0, y + 16
    for step in range(1, STEPS + 1):
        now = part(c, top, now, m.generate, "rollout", f"generate {step}")
        now = part(c, top + LANE + 8, now, m.train, "trainer", f"train {step}")
        now = sync(c, top, now, m.sync, 2)


def ahead(c: Canvas, y: float, m: Measured) -> None:
    heading(
        c, y, "staleness: 1", "arranged from the same durations, not measured on GPUs", ("rollout GPU", "trainer GPU")
    )
    now, top = part(c, y + 16, 0.0, m.generate, "rollout", "generate 1"), y + 16
    for step in range(1, 2 * STEPS):
        part(c, top, now, m.generate, "rollout", f"generate {step + 1}")
        end = part(c, top + LANE + 8, now, m.train, "trainer", f"train {step}")
        if end < SEEN:
            now = sync(c, top, end, m.sync, 2)


def shared(c: Canvas, y: float, m: Measured) -> None:
    heading(c, y, "colocated", "measured, both on one GPU", ("the same GPU",))
    now, top = 0.0, y + 16
    for step in range(1, STEPS + 1):
        now = part(c, top, now, m.generate, "rollout", f"generate {step}")
        now = part(c, top, now, m.train, "trainer", f"train {step}")
        now = sync(c, top, now, m.sync)


def legend(c: Canvas) -> None:
    for x, colour, words in (
        (10, "rollout", "generate and score"),
        (190, "trainer", "log-probabilities, update"),
        (400, "control", "weights to the rollouts"),
    ):
        fill = colour if colour == "control" else f"{colour}-soft"
        c.box(x, 482, 18, 14, fill, colour, 3)
        c.text(x + 26, 494, words, 13, "muted")
    c.text(
        10,
        522,
        "A GRPO step of a 1.5 B model on H200 GPUs: 512 samples, prompts of 256 and responses of 1,024 tokens.",
        13,
        "muted",
    )
