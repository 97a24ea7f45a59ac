"""What a GPU holds in each phase of a step, by the sizing code: examples/qwen2.5-7b-gsm8k on one node of 80 GB GPUs."""

import json
from pathlib import Path

import yaml

from docs.pictures.svg import Canvas
from kubectl_rljob import gib
from rljob_api.sizing.memory import GIB, PhaseMemory, phases
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

RECIPE = Path(__file__).parents[2] / "examples/qwen2.5-7b-gsm8k"
DEVICE = 79.1
"""GiB of an H100 with 80 GB, as its driver reports it."""
WIDTH, HEIGHT = 960, 378
LEFT, SCALE, TOP, ROW = 120, 9.4, 60, 44
"""`SCALE`: pixels of a GiB; `ROW`: height."""
MEANING = {
    "generate": "servers awake",
    "score": "log-probabilities",
    "train": "servers asleep",
    "sync": "weights to servers",
    "save": "checkpoint",
}
PARTS = (
    (("weights", "gradients", "optimizer"), "trainer", "weights, gradients, optimizer"),
    (("activations", "logits", "buckets", "outside"), "control", "activations, logits, buffers"),
    (("server",), "rollout", "vLLM: weights, KV cache"),
)
"""Columns of `plan`'s table that have a colour in common."""


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Memory of a GPU by phase of a step, for a 7 B model colocated on 8 GPUs", theme)
    spec = RLJobSpec.model_validate(yaml.safe_load((RECIPE / "rljob.yaml").read_text())["spec"])
    shape = Shape.of(json.loads((RECIPE / "config.json").read_text()))
    assert shape
    canvas.text(10, 28, "Qwen2.5-7B, GRPO, one node of 8 GPUs with 80 GB, colocated, with offload", 16, bold=True)
    axis(canvas)
    for i, phase in enumerate(phases(spec, shape, DEVICE * GIB)):
        bar(canvas, TOP + 8 + ROW * i, phase)
    legend(canvas)
    return canvas


def axis(c: Canvas) -> None:
    bottom = TOP + 5 * ROW
    for size in range(0, 80, 20):
        c.line(LEFT + SCALE * size, TOP, LEFT + SCALE * size, bottom)
        c.text(LEFT + SCALE * size, bottom + 20, f"{size} GiB" if size else "0", 12, "muted", "middle")
    edge = LEFT + SCALE * DEVICE
    c.line(edge, TOP - 6, edge, bottom, "bad", 2)
    c.text(edge, bottom + 20, f"{DEVICE} GiB", 12, "bad", "middle")


def bar(c: Canvas, y: float, phase: PhaseMemory) -> None:
    c.text(10, y + 13, phase.name, 14, bold=True)
    c.text(10, y + 28, MEANING[phase.name], 11, "muted")
    x = float(LEFT)
    for parts, colour, _ in PARTS:
        held = gib.total(getattr(phase.parts, part) for part in parts)
        wide = SCALE * held
        if wide:
            c.box(x, y, max(1.0, wide - 1), 28, f"{colour}-soft", colour, 3)
        if wide > 40:
            c.text(x + wide / 2, y + 19, f"{held:.1f}", 12, colour, "middle")
        x += wide
    c.text(x + 8, y + 19, gib.whole(phase.parts), 13, bold=True)


def legend(c: Canvas) -> None:
    y, x = TOP + 5 * ROW + 54, 10
    for _, colour, words in PARTS:
        c.box(x, y - 12, 18, 14, f"{colour}-soft", colour, 3)
        c.text(x + 26, y, words, 13, "muted")
        x += 290
    c.text(10, y + 34, "Estimated by the trainer's own sizing code, not measured.", 13, "muted")
