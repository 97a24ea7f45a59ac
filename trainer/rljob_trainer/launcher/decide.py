"""What a launcher does about a control. Pure."""

from typing import Literal

from rljob_api.protocol import Control

Action = Literal["wait", "start", "decline", "follow", "stop"]


def decide(control: Control, boot_id: str, newest: int, running: bool) -> Action:
    """`newest`: the last attempt this boot was a member of (0: none), `running`: whether it still runs.

    decline: we are a member of an attempt that is over before we began. follow: hand the control on to the attempt that runs.
    A gang that is told to drain before all of its members have begun is begun by them all, else those who did would wait for the rest.
    """
    listed = control.member(boot_id) is not None
    if running:
        return "follow" if listed and control.attempt == newest and control.command != "stop" else "stop"
    if not listed or control.attempt <= newest:
        return "wait"
    return "decline" if control.command == "stop" else "start"
