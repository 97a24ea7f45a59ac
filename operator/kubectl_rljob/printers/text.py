"""Tables, ages and clipping, as kubectl does them. Total: no text and no number from a cluster makes them raise.
And the screens of `list`, which has the columns of `kubectl get rljobs`, and of `checkpoints`."""

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from io import StringIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kubectl_rljob.job import Job
from kubectl_rljob.terminal import WIDEST
from rljob_api.accounting import Accounting, goodput
from rljob_api.protocol import Checkpoint

NONE = "<none>"
UNKNOWN = "<unknown>"
UNLIMITED = 100_000


def table(header: Sequence[str], rows: Sequence[Sequence[object]], width: int = UNLIMITED) -> str:
    """A header above rows of cells."""
    return columns([header, *rows], width)


def columns(rows: Sequence[Sequence[object]], width: int = UNLIMITED) -> str:
    """Left-aligned, three spaces apart, no trailing blanks. A line that does not fit the width ends with an ellipsis."""
    grid = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, show_header=False)
    for row in rows:
        grid.add_row(*(Text(NONE if cell in (None, "") else one_line(str(cell))) for cell in row))
    out = StringIO()
    Console(file=out, width=UNLIMITED, color_system=None).print(grid)
    return "\n".join(cut(line, width) for line in out.getvalue().rstrip().split("\n"))


def moment(when: str | float) -> datetime | None:
    """An RFC 3339 string, or seconds since the epoch; None when unset (`""` or 0) or no time at all."""
    if not when:
        return None
    try:
        then = _read(when) if isinstance(when, str) else datetime.fromtimestamp(when, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return then if then.tzinfo else None


def _read(when: str) -> datetime:
    """Python 3.10 knows no Z."""
    return datetime.fromisoformat(when.removesuffix("Z") + ("+00:00" if when.endswith("Z") else ""))


def age(when: str | float, now: datetime) -> str:
    """Time since `when`, in words."""
    then = moment(when)
    return UNKNOWN if then is None else duration((now - then).total_seconds())


def duration(seconds: float) -> str:
    """As HumanDuration of k8s.io/apimachinery/pkg/util/duration: 119s, 9m59s, 179m, 7h59m, 47h, 7d23h, 729d, 2y."""
    if not math.isfinite(seconds):
        return UNKNOWN
    s = max(0, int(seconds))
    minutes, hours, days = s // 60, s // 3600, s // 86400
    for limit, text in (
        (120, f"{s}s"),
        (600, _two(minutes, "m", s % 60, "s")),
        (3 * 3600, f"{minutes}m"),
        (8 * 3600, _two(hours, "h", minutes % 60, "m")),
        (48 * 3600, f"{hours}h"),
        (8 * 86400, _two(days, "d", hours % 24, "h")),
        (2 * 365 * 86400, f"{days}d"),
    ):
        if s < limit:
            return text
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}" + (f"{small}{small_unit}" if small else "")


def one_line(text: str) -> str:
    """With line breaks and tabs as blanks, so that a value cannot look like a line of ours."""
    return " ".join(text.split())


def clip(text: str, width: int = WIDEST) -> str:
    """The first line that says something, at most `width` columns."""
    return cut(text.strip().split("\n", 1)[0], width)


def cut(line: str, width: int) -> str:
    """At most `width` columns of one line, its blanks kept."""
    line = re.sub(r"\s", " ", line).rstrip()
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"


def plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{count:,} {noun}{ending}"


JOBS = ("NAME", "STATE", "STEP", "METRIC", "READY", "RESTARTS", "AGE")
CHECKPOINTS = ("STEP", "ATTEMPT", "AGE", "LAYOUT", "PATH")


def jobs(listed: Sequence[Job], now: datetime, with_namespace: bool, width: int) -> str:
    """One line per job; READY counts trainer pods."""
    rows = [(job.namespace, *_job(job, now)) for job in listed]
    header = ("NAMESPACE", *JOBS)
    start = 0 if with_namespace else 1
    return table(header[start:], [row[start:] for row in rows], width)


def _job(job: Job, now: datetime) -> tuple[object, ...]:
    created = age(job.metadata["creationTimestamp"], now)
    if job.unreadable:
        return (job.name, "Unreadable", "", "", "", "", created)
    s = job.status
    return (job.name, s.state, s.progress.text, s.progress.metric, s.trainer.text, s.restarts.total, created)


def checkpoints(kept: Sequence[Checkpoint], now: datetime, width: int) -> str:
    """One line per complete checkpoint, oldest first."""
    rows = [(c.step, c.attempt, age(c.time, now), c.layout, c.path) for c in kept]
    return table(CHECKPOINTS, rows, width)


def gpu_hours(known: Accounting, now: datetime, width: int) -> list[str]:
    """GPU-hours until now, the share of each phase, largest first, and the goodput; nothing for a job that has held no GPU."""
    counted = moment(known.until)
    spent = known.at((now - counted).total_seconds()) if counted else {}
    total = sum(spent.values())
    if not total:
        return []
    largest = sorted(spent.items(), key=lambda entry: -entry[1])
    shares = ", ".join(f"{phase} {100 * amount / total:.0f} %" for phase, amount in largest)
    kept = 100 * (goodput(spent) or 0.0)
    return [cut(f"GPU-HOURS   {total / 3600:,.1f}, goodput {kept:.0f} %: {shares}", width)]
