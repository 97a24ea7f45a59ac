"""Tables, ages and clipping, as kubectl does them."""

from collections.abc import Sequence
from datetime import UTC, datetime

NONE = "<none>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns, three spaces apart, no trailing blanks."""
    cells = [list(header)] + [[NONE if c in (None, "") else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def moment(when: str | float) -> datetime | None:
    """An RFC 3339 string, or seconds since the epoch; None when unset (`""` or 0)."""
    if not when:
        return None
    return datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when, UTC)


def age(when: str | float, now: datetime) -> str:
    """Time since `when`, in words."""
    then = moment(when)
    return "<unknown>" if then is None else duration((now - then).total_seconds())


def duration(seconds: float) -> str:
    """As HumanDuration of k8s.io/apimachinery/pkg/util/duration: 119s, 9m59s, 179m, 7h59m, 47h, 7d23h, 729d, 2y."""
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


def clip(text: str, width: int) -> str:
    """The first line, at most `width` characters."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{count:,} {noun}{ending}"
