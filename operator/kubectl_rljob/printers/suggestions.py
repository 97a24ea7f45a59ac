"""The page of `plan --suggest`."""

import json
from typing import Any

from kubectl_rljob import gib
from kubectl_rljob.planning import Plan
from kubectl_rljob.printers.text import plural, table
from kubectl_rljob.splitting import NEAREST, GpuSplit, is_split, others
from kubectl_rljob.suggesting import Suggested, Suggestion
from rljob_api import names
from rljob_api.sizing.devices import GIB
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import RolloutSpec

ON_HOST = "With the optimizer on GPUs none fits into 95 %: its steps are taken on the host (docs/sizing.md#optimizer-steps-on-the-host)."


def page(base: Plan, search: Suggested, split: GpuSplit | None) -> str:
    assert base.spec and base.device and base.cards
    ranks = f"{plural(base.spec.trainer.nodes, 'pod')} x {base.spec.trainer.processes_per_node}"
    place = f"{ranks} GPUs of {gib.text(base.device.bytes)} GiB, {base.cards.text} a node"
    looked = f"{search.tried:,} layouts" + ("" if search.whole else ", as many as there was time for,")
    head = f"RLJob {base.name}: the fastest of {looked} that fit on {place}"
    if not search.suggestions:
        why = [f"{count:,} {reason}" for reason, count in sorted(search.against.items(), key=lambda entry: -entry[1])]
        return (
            f"RLJob {base.name}: none of {looked} fits on {place}: {', '.join(why)}\ndocs/sizing.md has what to change"
        )
    rows = [_cells(suggestion) for suggestion in search.suggestions]
    numbered = [(number, *row.values()) for number, row in enumerate(rows, 1)]
    note = "Seconds and tokens/s are modelled and not measured, with every sample at its longest (docs/sizing.md#suggested-layouts)."
    options = [f"{number}: {_options(suggestion.settings)}" for number, suggestion in enumerate(search.suggestions, 1)]
    head += f"\n{ON_HOST}" if search.updated else ""
    return "\n\n".join(
        [
            head,
            table(("#", *rows[0]), numbered),
            note,
            "\n".join(options),
            *_split(base.spec, search.suggestions[0], split),
        ]
    )


def _split(spec: RLJobSpec, best: Suggestion, split: GpuSplit | None) -> list[str]:
    """Whether other numbers of nodes and servers would be faster, where a job has both."""
    if not is_split(spec):
        return []
    own = f"{best.speed.tokens_per_second:,.0f}"
    if split is None:
        near = min(NEAREST, len([*others(spec)]))
        why = f"of the {plural(near, 'most promising other')}, none is faster" if near else "no other has as many GPUs"
        return [f"The split of the job's GPUs between training and generation stays: {why}."]
    numbers = f"{split.training} GPUs for training and {split.generating} for generation"
    options = _options(split.settings)
    return [
        f"As many GPUs split otherwise, {numbers}, have {split.tokens_per_second:,.0f} tokens/s, in place of {own}:\n{options}"
    ]


def _cells(suggestion: Suggestion) -> dict[str, str]:
    """By column; those of servers where there are some."""
    plan = suggestion.plan
    spec, cache, host = plan.spec, plan.cache(), plan.host()
    assert spec and host
    return {
        "TRAINER": str(Layout.of(spec, names.ROLE_TRAINER)),
        "RECOMPUTE": spec.trainer.recompute.granularity,
        "MICRO-BATCH": f"{spec.train.tokens_per_micro_batch:,}",
        **({"SERVER": _server(spec.rollout)} if cache else {}),
        "GIB OF A GPU": max((gib.whole(phase.parts) for phase in plan.phases()), key=float),
        "OF A HOST": f"{host.total / GIB:.0f}",
        **({"KV CACHE": gib.text(cache.there)} if cache else {}),
        **{name.upper(): f"{seconds:.1f}" for name, seconds in suggestion.speed.phases.items()},
        "TOKENS/S": f"{suggestion.speed.tokens_per_second:,.0f}",
    }


def _server(rollout: RolloutSpec) -> str:
    """How it is cut, and how many share a GPU where several do."""
    sharing = f"{rollout.servers_per_gpu} x " if rollout.servers_per_gpu > 1 else ""
    return f"{sharing}tp{rollout.tensor_parallel}"


def _options(settings: dict[str, Any]) -> str:
    """What to add to the command, or to write into the manifest."""
    if not settings:
        return "as the manifest has it"
    return " ".join(f"--set '{path}={json.dumps(value)}'" for path, value in settings.items())
