"""A GRPO step of RLJob and of verl on the same machine, by phase: the recorded runs of benchmarks/runs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from docs.pictures.svg import Canvas

RUNS = Path(__file__).parents[2] / "benchmarks/runs"
SITTINGS = (
    ("Qwen2.5-1.5B, one H200", "step-1.5b-h200.jsonl", "MM"),
    ("Qwen2.5-1.5B, another H200, slower host", "step-1.5b-h200.jsonl", "NN"),
    ("Qwen2.5-7B, two H200", "step-7b-h200.jsonl", "QQ"),
    ("Qwen2.5-7B, two other H200", "step-7b-h200.jsonl", "RR"),
)
"""What ran, the file that has it, and the stay on one machine, in which every program ran."""
PHASES = (
    ("generate", "rollout", "generation and scoring"),
    ("old_log_prob", "muted", "old log-probabilities"),
    ("train", "trainer", "training"),
    ("sync", "control", "weights to the servers"),
    ("rest", "line", "the rest"),
)
"""Key, colour, meaning, in the order of a step."""
WIDTH, LEFT, SCALE, BAR = 960, 180, 7, 26
"""`SCALE`: pixels of a second; `BAR`: height."""


@dataclass(frozen=True)
class Step:
    """The median of one program's steps after the first, which compiles kernels: seconds of each phase, and tokens a second."""

    program: str
    tokens_per_s: float
    phases: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def steps(file: str, lease: str) -> list[Step]:
    """Of every program in one lease, the fastest run of each."""
    rows = [json.loads(line) for line in (RUNS / file).read_text().splitlines()]
    fastest: dict[str, Step] = {}
    for step in (_step(row) for row in rows if row["lease"] == lease):
        if step.program not in fastest or step.seconds < fastest[step.program].seconds:
            fastest[step.program] = step
    return list(fastest.values())


def _step(row: dict[str, Any]) -> Step:
    later = [step for step in row["steps"].values() if step["step"] > 1]
    phases = {key: median(step.get(key, 0.0) for step in later) for key, _, _ in PHASES[:-1]}
    phases["rest"] = median(step["seconds"] for step in later) - sum(phases.values())
    program = "RLJob" if row["program"] == "rljob" else f"{row['program']}, {row['backend']}"
    tokens = median(step["tokens_per_s"] for step in later)
    return Step(program, tokens, phases)


def draw(theme: dict[str, str]) -> Canvas:
    sittings = [(title, steps(file, lease)) for title, file, lease in SITTINGS]
    height = 58 + sum(44 + (BAR + 10) * len(found) for _, found in sittings)
    canvas = Canvas(WIDTH, height, "Seconds of a GRPO step of RLJob and of verl on the same machine, by phase", theme)
    y = 30.0
    for title, found in sittings:
        canvas.text(10, y, title, 15, bold=True)
        y += 14
        for step in found:
            _bar(canvas, y, step, found[0])
            y += BAR + 10
        y += 30
    _legend(canvas, height - 16)
    return canvas


def _bar(c: Canvas, y: float, step: Step, first: Step) -> None:
    x = float(LEFT)
    c.text(LEFT - 12, y + 18, step.program, 13, "muted", "end")
    for key, colour, _ in PHASES:
        width = SCALE * step.phases[key]
        c.box(x, y, max(width, 0.5), BAR, colour, radius=2)
        x += width
    against = "" if step is first else f", {step.seconds / first.seconds:.1f} times as long"
    c.text(x + 10, y + 18, f"{step.seconds:.1f} s{against}", 13, bold=step is first)


def _legend(c: Canvas, y: float) -> None:
    x = 10.0
    for _, colour, meaning in PHASES:
        c.box(x, y - 11, 14, 14, colour, radius=2)
        c.text(x + 20, y, meaning, 13, "muted")
        x += 44 + 7.2 * len(meaning)


def table() -> Iterator[str]:
    """The same as lines of a page's table: what, program, seconds of the step and its parts, tokens a second."""
    for title, file, lease in SITTINGS:
        for step in steps(file, lease):
            parts = (f"{step.phases[key]:.1f}" for key in ("generate", "old_log_prob", "train", "sync"))
            yield f"| {title} | {step.program} | {step.seconds:.1f} | {' | '.join(parts)} | {step.tokens_per_s:,.0f} |"
