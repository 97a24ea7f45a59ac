"""The states of a job, as `kubectl get` shows them, and the commands of an attempt."""

from typing import get_args

from docs.pictures.svg import Canvas
from rljob_api.protocol import Command, Result
from rljob_api.status import State

WIDTH, HEIGHT = 960, 620
W, H = 132, 46
AT: dict[State, tuple[int, int, str]] = {
    "Suspended": (24, 56, "control"),
    "Suspending": (520, 56, "control"),
    "Pending": (24, 176, "muted"),
    "Starting": (286, 176, "trainer"),
    "Running": (520, 176, "trainer"),
    "Succeeded": (804, 176, "good"),
    "Restarting": (286, 306, "rollout"),
    "Failed": (804, 306, "bad"),
}
"""Left upper corner and colour of every state."""
COMMANDS: dict[Command, tuple[int, str, str]] = {
    "run": (24, "trainer", "train and save"),
    "drain": (286, "rollout", "finish the step, save"),
    "stop": (548, "bad", "end now"),
}


def draw(theme: dict[str, str]) -> Canvas:
    assert set(AT) == set(get_args(State)), "a state is missing in the picture"
    assert set(COMMANDS) == set(get_args(Command)), "a command is missing in the picture"
    canvas = Canvas(WIDTH, HEIGHT, "States of a job, and the commands of an attempt", theme)
    canvas.text(24, 26, "Job", 17, bold=True)
    canvas.text(66, 26, "status.state, the STATE column", 13, "muted")
    canvas.text(WIDTH - 24, 26, "Starting is left as Running is; Pending can be suspended, too", 12, "muted", "end")
    for name, (x, y, colour) in AT.items():
        canvas.box(x, y, W, H, "surface" if colour == "muted" else f"{colour}-soft", colour)
        canvas.text(x + W / 2, y + 29, name, 15, "ink" if colour == "muted" else colour, "middle", bold=True)
    forwards(canvas)
    aside(canvas)
    ends(canvas)
    attempt(canvas)
    return canvas


def forwards(c: Canvas) -> None:
    c.arrow([(156, 199), (284, 199)], "trainer")
    c.text(220, 172, "all trainer pods", 12, "muted", "middle")
    c.text(220, 188, "are ready", 12, "muted", "middle")
    c.arrow([(418, 199), (518, 199)], "trainer")
    c.text(468, 172, "loaded, rollouts", 12, "muted", "middle")
    c.text(468, 188, "answer", 12, "muted", "middle")
    c.arrow([(652, 199), (802, 199)], "good")
    c.text(727, 188, "every rank has finished", 12, "muted", "middle")


def aside(c: Canvas) -> None:
    """Out of a running attempt and back; what leaves Running leaves Starting, too."""
    c.arrow([(586, 176), (586, 104)], "control")
    c.text(596, 144, "suspend", 12, "muted")
    c.arrow([(518, 79), (158, 79)], "control")
    c.text(338, 70, "checkpoint saved, pods deleted", 12, "muted", "middle")
    c.arrow([(90, 102), (90, 174)], "control")
    c.text(100, 144, "resume", 12, "muted")
    c.arrow([(586, 222), (586, 322), (420, 322)], "rollout")
    c.text(596, 262, "a rank or a pod was lost,", 12, "muted")
    c.text(596, 278, "or a restart was asked for", 12, "muted")
    c.arrow([(352, 306), (352, 224)], "trainer")
    c.text(342, 262, "next attempt, from", 12, "muted", "end")
    c.text(342, 278, "the last checkpoint", 12, "muted", "end")


def ends(c: Canvas) -> None:
    c.arrow([(418, 340), (802, 340)], "bad")
    c.text(704, 316, "a wrong setting, or", 12, "muted", "middle")
    c.text(704, 332, "maxRestarts is used up", 12, "muted", "middle")
    c.arrow([(848, 352), (848, 386), (352, 386), (352, 354)], "rollout", dashed=True)
    c.text(596, 380, "resume --from-step, also after Succeeded", 12, "muted", "middle")
    c.arrow([(90, 222), (90, 416), (894, 416), (894, 354)], "bad", dashed=True)
    c.text(596, 410, "the spec breaks a rule, or a deadline has passed", 12, "muted", "middle")


def attempt(c: Canvas) -> None:
    c.line(24, 446, WIDTH - 24, 446)
    c.text(24, 482, "Attempt", 17, bold=True)
    c.text(114, 482, "one life of the whole gang: status.attempt.command", 13, "muted")
    for name, (x, colour, words) in COMMANDS.items():
        c.box(x, 508, 170, 58, f"{colour}-soft", colour)
        c.label(x, 508, 170, 58, (name, words), colour)
    c.arrow([(194, 537), (284, 537)], "rollout")
    c.text(239, 512, "suspend,", 12, "muted", "middle")
    c.text(239, 528, "restart", 12, "muted", "middle")
    c.arrow([(456, 537), (546, 537)], "bad")
    c.text(501, 526, "timeout", 12, "muted", "middle")
    c.arrow([(109, 568), (109, 592), (633, 592), (633, 568)], "bad")
    c.text(371, 610, "failure, no heartbeat, resume --from-step", 12, "muted", "middle")
    c.text(748, 520, "ends when all members have", 13, "muted")
    c.text(748, 538, "ended, each with a result:", 13, "muted")
    for i in range(0, len(get_args(Result)), 2):
        c.text(748, 560 + 9 * i, ", ".join(get_args(Result)[i : i + 2]), 13)
