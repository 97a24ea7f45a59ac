"""Where a job's pods are, or would be."""

from collections import Counter
from collections.abc import Sequence

from kubectl_rljob.preview import Preview
from kubectl_rljob.printers.text import cut, plural, table
from rljob_api import names
from rljob_api.status_parts import Crossing, PlacementReport
from rljob_placement.explain import WHOLE

STAGES = 6
"""Stages, or domains of rollouts, that are named."""
NOMINAL = " of an 8 B model"
"""The operator cannot read the job's own, and takes one of 8 billion parameters."""
ASSUMED = "Bytes are those of a model of 8 billion parameters; --model counts those of the job's own"
"""`plan` without --model takes the same one."""
NOWHERE = "no capacity now"
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def line(report: PlacementReport, width: int) -> list[str]:
    """One line of the status page; none before there is a placement."""
    if not report.stages:
        return []
    parts = [f"stage{'s' if len(report.stages) > 1 else ''} {_named(report.stages)}"]
    if report.rollouts:
        parts.append(f"rollouts {_counted(report.rollouts)}")
    if report.spares:
        parts.append(f"spares {_counted(report.spares)}")
    parts += [f"{role} {_named(domains)}" for role, domains in report.gangs.items()]
    parts += [f"{pool} {_counted(domains)}" for pool, domains in report.pools.items()]
    if any(c.pairs for c in report.levels):
        parts.append(f"pairs across {', '.join(f'{c.level} {c.pairs}{_volume(c)}' for c in report.levels)}{NOMINAL}")
    elif report.levels:
        parts.append(f"all traffic within a {report.levels[-1].level}")
    return [cut(f"PLACEMENT   {'; '.join(parts)}", width)]


def preview(where: Preview) -> str:
    """The block of `plan`."""
    if where.skipped:
        return f"Placement: {where.skipped}"
    if where.problem:
        return f"Placement: there is no capacity now: {where.problem}"
    r = where.report
    rows = [(f"stage {i}", domain or WHOLE) for i, domain in enumerate(r.stages)]
    rows += _rows(names.ROLE_ROLLOUT, r.rollouts, where)
    if len(rows) > 2 * STAGES:
        rows = [(f"stages 0-{len(r.stages) - 1}", _named(r.stages)), ("rollouts", _counted(r.rollouts))]
    rows += [("spares", _counted([domain or NOWHERE for domain in r.spares]))] if r.spares else []
    rows += [(role, _named([domain or WHOLE for domain in domains])) for role, domains in r.gangs.items()]
    for pool, domains in r.pools.items():
        each = pool in where.servers and len(domains) <= STAGES
        rows += _rows(pool, domains, where) if each else [(pool, _counted(domains))]
    levels = [(c.level, c.pairs, size(c.bytes_per_step)) for c in r.levels]
    head = f"Placement on {plural(where.nodes, 'node')}, as free now:"
    crossings = table(("CROSSES", "PAIRS", "BYTES/STEP"), levels)
    said = f"\n{ASSUMED}" if where.nominal and any(c.pairs for c in r.levels) else ""
    lacks = f"\nrollout {r.rollouts.index('')} {where.lacking}" if where.lacking else ""
    kept = "".join(f"\n{sentence}" for sentence in where.reserved)
    return f"{head}\n{table(('PODS', 'DOMAIN'), rows)}{lacks}{kept}\n\n{crossings}{said}"


def _rows(role: str, domains: Sequence[str], where: Preview) -> list[tuple[str, str]]:
    """A row for each server. Of several pods on several nodes, the row names these."""
    nodes = where.servers.get(role) or [()] * len(domains)
    named = (
        f": {_counted(on)}" if domain and len(set(on)) > 1 else "" for domain, on in zip(domains, nodes, strict=True)
    )
    return [
        (f"{role} {i}", (domain or NOWHERE) + on) for i, (domain, on) in enumerate(zip(domains, named, strict=True))
    ]


def size(count: float) -> str:
    """`3.1 GB`"""
    unit = 0
    while count >= 1000 and unit + 1 < len(UNITS):
        count, unit = count / 1000, unit + 1
    return f"{count:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"


def _volume(c: Crossing) -> str:
    return f" ({size(c.bytes_per_step)}/step)" if c.pairs else ""


def _named(domains: Sequence[str]) -> str:
    more = f" and {len(domains) - STAGES} more" if len(domains) > STAGES else ""
    return ", ".join(domain or WHOLE for domain in domains[:STAGES]) + more


def _counted(domains: Sequence[str]) -> str:
    counts = Counter(domain or "nowhere" for domain in domains)
    named = [domain + (f" ×{count}" if count > 1 else "") for domain, count in counts.most_common(STAGES)]
    return ", ".join(named) + (f" and {len(counts) - STAGES} more" if len(counts) > STAGES else "")
