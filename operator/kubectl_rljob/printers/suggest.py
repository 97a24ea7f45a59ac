"""The page of `plan --suggest`."""

import json
from typing import Any

from kubectl_rljob.planning import Plan
from kubectl_rljob.printers.text import plural, table
from kubectl_rljob.suggesting import Search, Suggestion
from rljob_api import names
from rljob_api.sizing.devices import GIB
from rljob_api.sizing.layout import Layout

HEADER = (
    *("#", "TRAINER", "RECOMPUTE", "SERVER", "GIB OF A GPU", "KV CACHE"),
    *("GENERATE", "TRAIN", "UPDATE", "TOKENS/S"),
)


def page(base: Plan, search: Search) -> str:
    assert base.spec and base.device and base.cards
    ranks = f"{plural(base.spec.trainer.nodes, 'pod')} x {base.spec.trainer.processes_per_node}"
    place = f"{ranks} GPUs of {base.device.bytes / GIB:.1f} GiB, {base.cards.text} a node"
    looked = f"{search.tried:,} layouts" + ("" if search.whole else ", as many as there was time for,")
    head = f"RLJob {base.name}: the fastest of {looked} that fit on {place}"
    if not search.found:
        why = [f"{count:,} {reason}" for reason, count in sorted(search.against.items(), key=lambda found: -found[1])]
        return (
            f"RLJob {base.name}: none of {looked} fits on {place}: {', '.join(why)}\ndocs/sizing.md has what to change"
        )
    rows = [_row(number, found) for number, found in enumerate(search.found, 1)]
    note = "Seconds and tokens/s are modelled and not measured, with every sample at its longest (docs/sizing.md#suggested-layouts)."
    options = [f"{number}: {_options(found.settings)}" for number, found in enumerate(search.found, 1)]
    return "\n\n".join([head, table(HEADER, rows), note, "\n".join(options)])


def _row(number: int, found: Suggestion) -> tuple[Any, ...]:
    spec = found.plan.spec
    assert spec
    cache = found.plan.cache()
    return (
        number,
        str(Layout.of(spec, names.ROLE_TRAINER)),
        spec.trainer.recompute.granularity,
        f"tp{spec.rollout.tensor_parallel}" if cache else "-",
        f"{max(phase.total for phase in found.plan.phases()) / GIB:.1f}",
        f"{cache.there / GIB:.1f}" if cache else "-",
        *(f"{seconds:.1f}" for seconds in (found.speed.generate, found.speed.train, found.speed.update)),
        f"{found.speed.tokens_per_second:,.0f}",
    )


def _options(settings: dict[str, Any]) -> str:
    """What to add to the command, or to write into the manifest."""
    if not settings:
        return "as the manifest has it"
    return " ".join(f"--set '{path}={json.dumps(value)}'" for path, value in settings.items())
