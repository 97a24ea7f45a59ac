"""Responses that continue under the next policy: a small run of staleness 2, by the rule that the rollout buffer follows."""

import random
from dataclasses import dataclass, field

from docs.pictures.svg import Canvas
from rljob_trainer.driver.buffer.selection import fit_later

WIDTH, HEIGHT = 960, 356
LEFT, TOP, LANE, GAP, SCALE = 150, 66, 34, 6, 11.4
"""`SCALE`: pixels of a unit of time."""
SLOTS, WANTED, STALENESS, TRAIN, SYNC, END = 4, 3, 2, 8, 0.8, 70
"""`TRAIN`, `SYNC`, `END`: units of time."""
COLOURS = ("rollout", "good", "control", "bad")
"""Of policies, in turn."""


@dataclass
class Response:
    """One response on one of the server's slots."""

    number: int
    policy: int
    slot: int
    left: int
    parts: list[tuple[float, float, int]] = field(default_factory=list)
    """Beginning, end, policy."""
    step: int = 0
    """That trains it; 0: none so far."""


class Run:
    """Time goes in units; a policy is published when its step has been trained."""

    def __init__(self) -> None:
        self.chance, self.policy, self.taken = random.Random(1), 0, 0
        self.responses: list[Response] = []
        self.steps: list[tuple[int, float]] = []
        """Steps with when they began."""
        self.published: list[float] = []
        busy = False
        for now in range(END):
            if busy and now >= self.steps[-1][1] + TRAIN:
                busy, self.policy = False, self.policy + 1
                self.published.append(now)
            else:
                self.generate(now)
            busy = busy or self.take(now)

    def generate(self, now: int) -> None:
        free = set(range(SLOTS)) - {r.slot for r in self.responses if r.left}
        for slot in sorted(free):
            if len(self.responses) < (self.policy + 1 + STALENESS) * WANTED:
                length = self.chance.choice([6, 8, 10, 13, 26])
                self.responses.append(Response(len(self.responses) + 1, self.policy, slot, length))
        for r in self.responses:
            if r.left:
                r.left -= 1
                self.extend(r, now)

    def extend(self, r: Response, now: int) -> None:
        if r.parts and r.parts[-1][1] == now and r.parts[-1][2] == self.policy:
            r.parts[-1] = (r.parts[-1][0], now + 1, self.policy)
        else:
            r.parts.append((now, now + 1, self.policy))

    def take(self, now: int) -> bool:
        """Whether the next step begins: its responses are the oldest that are complete."""
        waiting = [r for r in self.responses if not r.step]
        chosen = [r for r in waiting if not r.left][:WANTED]
        waits = [r.policy + STALENESS - self.taken for r in waiting if r not in chosen]
        if len(chosen) < WANTED or not fit_later(waits, WANTED):
            return False
        self.taken += 1
        for r in chosen:
            r.step = self.taken
        self.steps.append((self.taken, now + 1))
        return True


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, "Responses that continue under the next policy, with staleness 2", theme)
    run = Run()
    canvas.box(0, 20, WIDTH, 26, "surface", radius=4)
    canvas.text(10, 38, "staleness: 2, interrupt: continue", 15, bold=True)
    canvas.text(WIDTH - 10, 38, "3 responses a step; the number is the step that trains them", 13, "muted", "end")
    generation(canvas, run)
    training(canvas, run)
    legend(canvas, run)
    return canvas


def lane(number: int) -> float:
    return TOP + number * (LANE + GAP)


def generation(c: Canvas, run: Run) -> None:
    for slot in range(SLOTS):
        c.text(10, lane(slot) + 22, f"response slot {slot + 1}", 13, "muted")
    for r in run.responses:
        for start, end, policy in r.parts:
            colour = COLOURS[policy % len(COLOURS)]
            c.box(LEFT + SCALE * start, lane(r.slot), SCALE * (end - start) - 1, LANE, f"{colour}-soft", colour, 3)
        first, last, _ = r.parts[-1]
        if r.step:
            c.text(LEFT + SCALE * (first + last) / 2, lane(r.slot) + 22, str(r.step), 13, "ink", "middle")
    for time in run.published:
        c.box(LEFT + SCALE * time, TOP - 6, SCALE * SYNC, SLOTS * (LANE + GAP) + LANE + 12, "muted", radius=2)


def training(c: Canvas, run: Run) -> None:
    y = lane(SLOTS)
    c.text(10, y + 22, "trainer", 13, "muted")
    for number, start in run.steps:
        if start + TRAIN <= END:
            c.box(LEFT + SCALE * start, y, SCALE * (TRAIN - 1) - 1, LANE, "trainer-soft", "trainer", 4)
            c.text(LEFT + SCALE * (start + (TRAIN - 1) / 2), y + 22, f"train {number}", 13, "trainer", "middle")


def legend(c: Canvas, run: Run) -> None:
    y = lane(SLOTS + 1) + 24
    for policy in range(min(len(COLOURS), len(run.published) + 1)):
        colour = COLOURS[policy]
        c.box(10 + 190 * policy, y, 18, 14, f"{colour}-soft", colour, 3)
        c.text(36 + 190 * policy, y + 12, f"tokens of policy {policy}, {policy + len(COLOURS)}", 13, "muted")
    c.box(790, y, 9, 14, "muted", radius=2)
    c.text(806, y + 12, "a new policy is sent", 13, "muted")
    c.text(
        10, y + 44, "A response that is being generated when a policy comes continues behind its tokens.", 13, "muted"
    )
