"""What a job has used its GPUs for, in one line of `status`."""

from datetime import datetime

from kubectl_rljob.printers.text import cut, moment
from rljob_api.accounting import Accounting, goodput


def line(known: Accounting, now: datetime, width: int) -> list[str]:
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
