"""The screen of `checkpoints`."""

from collections.abc import Sequence
from datetime import datetime

from kubectl_rljob.printers.text import age, table
from rljob_api.protocol import Checkpoint

HEADER = ("STEP", "ATTEMPT", "AGE", "LAYOUT", "RESHARDABLE", "PATH")


def screen(kept: Sequence[Checkpoint], now: datetime) -> str:
    """One line per complete checkpoint, oldest first."""
    return table(
        HEADER,
        [(c.step, c.attempt, age(c.time, now), c.layout, "yes" if c.reshardable else "no", c.path) for c in kept],
    )
