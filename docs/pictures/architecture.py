"""The parts of a job, and what they say to each other."""

from docs.pictures.svg import Canvas

WIDTH, HEIGHT = 960, 560
TRAINER = (24, 190, 470, 242)
ROLLOUT = (646, 190, 290, 242)


def draw(theme: dict[str, str]) -> Canvas:
    canvas = Canvas(
        WIDTH, HEIGHT, "API server, operator, trainer pods, rollout pods and shared volume of an RLJob", theme
    )
    control_plane(canvas)
    trainer(canvas)
    rollouts(canvas)
    between(canvas)
    volume(canvas)
    return canvas


def control_plane(c: Canvas) -> None:
    for x, w, lines in (
        (24, 200, ("rljob.yaml", "kubectl, Helm, Git")),
        (330, 240, ("API server", "RLJob, ConfigMaps, pods")),
        (706, 230, ("RLJob operator", "observe, decide, apply")),
    ):
        colour = "control" if w == 230 else "ink"
        c.box(
            x,
            16,
            w,
            64,
            "control-soft" if colour == "control" else "card",
            "control" if colour == "control" else "line",
        )
        c.label(x, 16, w, 64, lines, colour)
    c.arrow([(224, 48), (328, 48)], "muted")
    c.text(276, 40, "apply", 13, "muted", "middle")
    c.arrow([(704, 48), (572, 48)], "control", both=True)
    c.text(638, 40, "watch, write", 13, "muted", "middle")


def trainer(c: Canvas) -> None:
    x, y, w, h = TRAINER
    c.box(x, y, w, h, "surface", "trainer", 12)
    c.text(x + 18, y + 29, "Trainer StatefulSet", 16, "trainer", bold=True)
    c.text(x + w - 18, y + 29, "a gang: restarts as one", 13, "muted", "end")
    pod(c, x + 18, y + 44, "trainer-0", ("driver", "prompts, rewards, batches"))
    pod(c, x + 244, y + 44, "trainer-1 …", None)


def pod(c: Canvas, x: float, y: float, name: str, driver: tuple[str, str] | None) -> None:
    c.box(x, y, 208, 180, "card", "line")
    c.text(x + 14, y + 24, name, 13, "muted")
    c.text(x + 194, y + 24, "launcher", 13, "ink", "end")
    if driver:
        c.box(x + 12, y + 36, 184, 54, "rollout-soft")
        c.label(x + 12, y + 36, 184, 54, driver)
    for i in range(4):
        c.box(x + 12 + 47 * i, y + 102, 43, 36, "trainer-soft", radius=5)
        c.text(x + 33.5 + 47 * i, y + 125, "rank", 13, "trainer", "middle")
    c.text(x + 104, y + 160, "Megatron, a process per GPU", 13, "muted", "middle")


def rollouts(c: Canvas) -> None:
    x, y, w, h = ROLLOUT
    c.box(x, y, w, h, "surface", "rollout", 12)
    c.text(x + 18, y + 29, "Rollout StatefulSet", 16, "rollout", bold=True)
    for i in range(3):
        top = y + 44 + 62 * i
        c.box(x + 18, top, w - 36, 54, "card", "line")
        c.text(x + 32, top + 32, f"rollout-{i}" + (" …" if i == 2 else ""), 13, "muted")
        c.box(x + 128, top + 9, w - 158, 36, "rollout-soft")
        c.text(x + 128 + (w - 158) / 2, top + 32, "vLLM", 15, "rollout", "middle", bold=True)


def between(c: Canvas) -> None:
    c.arrow([(400, 80), (400, 188)], "control")
    c.text(390, 128, "control: which attempt,", 13, "muted", "end")
    c.text(390, 146, "which members", 13, "muted", "end")
    c.arrow([(460, 188), (460, 82)], "control")
    c.text(470, 128, "reports: progress,", 13, "muted")
    c.text(470, 146, "checkpoints, failures", 13, "muted")
    c.arrow([(494, 262), (644, 262)], "rollout", both=True)
    c.text(569, 236, "prompts, responses,", 13, "muted", "middle")
    c.text(569, 252, "log-probabilities", 13, "muted", "middle")
    c.arrow([(494, 368), (644, 368)], "trainer")
    c.text(569, 342, "weights of each step,", 13, "muted", "middle")
    c.text(569, 358, "verified by checksum", 13, "muted", "middle")


def volume(c: Canvas) -> None:
    c.box(24, 488, 912, 56, "card", "line")
    c.text(44, 521, "Shared volume", 15, "ink", bold=True)
    c.text(
        190,
        521,
        "model and data  ·  checkpoints  ·  exported Hugging Face model  ·  logs, metrics, TensorBoard",
        13,
        "muted",
    )
    c.arrow([(259, 432), (259, 486)], "trainer", both=True)
    c.text(271, 464, "checkpoints: save, restore", 13, "muted")
    c.arrow([(791, 486), (791, 434)], "rollout")
    c.text(779, 464, "model, once at the start", 13, "muted", "end")
