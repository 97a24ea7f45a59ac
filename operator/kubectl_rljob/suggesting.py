"""Layouts in which a job fits, the fastest first by a model of their speed: the data behind `plan --suggest`."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

from kubectl_rljob.choices import Choice, choices, shared_critic
from kubectl_rljob.fitting import ROOM
from kubectl_rljob.planning import Plan
from kubectl_rljob.remedies import most_tokens
from rljob_api.manifest import Manifest
from rljob_api.rules import Violation
from rljob_api.rules.layout import RANKS_CHECKS, of_the_trainer
from rljob_api.rules.model import model_violations
from rljob_api.sizing.memory import cache_memory, phases
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import Speed, speed
from rljob_api.sizing.split import WAYS
from rljob_api.sizing.training import Machine
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Parallelism

SHOWN = 5
SECONDS = 10.0
"""How long layouts are looked at, and then those planned that look best."""
TOO_LARGE = "take more of a GPU"
Planned = Callable[[Manifest], Plan]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A layout in which every rule holds and the job fits."""

    settings: dict[str, Any]
    plan: Plan
    speed: Speed

    def dump(self) -> dict[str, Any]:
        seconds = {name: round(value, 3) for name, value in self.speed.phases.items()}
        speed = {"tokensPerSecond": round(self.speed.tokens_per_second), "tokens": self.speed.tokens}
        return {"settings": self.settings} | speed | seconds


@dataclass(frozen=True, slots=True)
class Suggested:
    """Suggestions, and how much was looked at for them."""

    suggestions: list[Suggestion]
    reasons: Mapping[str, int]
    """How many layouts were looked at, by what is against them; empty: nothing."""
    whole: bool
    """All layouts were looked at, before the time was up."""
    updated: bool = False
    """Steps of the optimizer on the host were tried, since no layout fits otherwise. All suggestions take them there."""

    @property
    def tried(self) -> int:
        return sum(self.reasons.values())

    @property
    def against(self) -> dict[str, int]:
        return {reason: count for reason, count in self.reasons.items() if reason and count}

    def dump(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "suggestions": [suggestion.dump() for suggestion in self.suggestions],
            "tried": self.tried,
            "reasons": self.against,
            "whole": self.whole,
            "updateOnHost": self.updated,
        }


CHANGED = (
    "spec.trainer.parallelism",
    *(f"spec.trainer.transformerConfig.{key}" for way in WAYS for key in way),
    "spec.trainer.transformerConfig.cpu_offloading",
    "spec.trainer.transformerConfig.distribute_saved_activations",
    "spec.trainer.recompute",
    "spec.rollout.tensorParallel",
)
"""Fields that suggestions change, and keys that depend on them."""


def elsewhere(violations: Iterable[Violation]) -> list[Violation]:
    """Broken rules that stay broken in every layout."""
    return [v for v in violations if not v.field.startswith(CHANGED)]


def suggest(manifest: Manifest, base: Plan, machine: Machine, planned: Planned) -> Suggested:
    """`base`: the plan of the manifest as it is. Its layout may break rules; whatever else it breaks, every suggestion would.

    Where no layout fits, steps of the optimizer on the host are tried, which take time and host memory."""
    shape = Shape.of(base.model) if base.model else None
    if base.spec is None or shape is None or base.model is None:
        return Suggested([], {}, True)
    spec, config = base.spec, base.model

    def search(updated: bool) -> Suggested:
        looked = _look(spec, config, shape, machine, updated)
        suggestions = [*_proven(manifest, looked, shape, machine, planned)]
        whole = looked.whole and bool(suggestions or not looked.reasons[""])
        return Suggested(suggestions, looked.reasons, whole, updated)

    as_given = search(updated=False)
    critic = shared_critic(spec)
    on_gpu = not spec.trainer.offload.update or (critic and not critic.offload.update)
    if as_given.suggestions or not on_gpu:
        return as_given
    on_host = search(updated=True)
    reasons = Counter(as_given.reasons) + Counter(on_host.reasons)
    return replace(on_host, reasons=reasons, whole=as_given.whole and on_host.whole)


class _Looked(NamedTuple):
    """All layouts, before any was planned."""

    ranked: list[Choice]
    """Those that fit, the fastest first; where the step takes equally long, those that compute less."""
    reasons: Counter[str]
    """Of layouts that are planned, `_proven` adds what the plan has against them."""
    whole: bool


def _look(spec: RLJobSpec, config: dict[str, Any], shape: Shape, machine: Machine, updated: bool) -> _Looked:
    ends, fitting, reasons = time.monotonic() + SECONDS, list[tuple[Speed, Choice]](), Counter[str]()
    whole = True
    for choice in choices(spec, shape, updated):
        if time.monotonic() > ends:
            whole = False
            break
        fitted, reason = _fitted(choice, spec, config, shape, machine)
        reasons[reason] += 1
        if not reason:
            fitting.append((speed(fitted.of(spec, shape), shape, machine), fitted))
    fitting.sort(key=lambda entry: (entry[0].seconds, entry[0].generate + entry[0].train))
    return _Looked([choice for _, choice in fitting], reasons, whole)


def _proven(
    manifest: Manifest, looked: _Looked, shape: Shape, machine: Machine, planned: Planned
) -> Iterator[Suggestion]:
    """The best of them, as `plan` sees the manifest with them: one of each way to cut the trainer's model."""
    shown, ends = list[Parallelism](), time.monotonic() + SECONDS
    for choice in looked.ranked:
        if len(shown) == SHOWN or time.monotonic() > ends:
            return
        if choice.parallelism in shown:
            continue
        settings = choice.settings(manifest.spec, shape)
        plan = planned(replace(manifest, spec=reduce(put, settings.items(), manifest.spec)))
        broken = [*plan.violations, *plan.misfits()]
        if plan.spec and not broken:
            shown.append(choice.parallelism)
            yield Suggestion(settings, plan, speed(plan.spec, shape, machine))
        else:
            looked.reasons.subtract([""])
            looked.reasons[f"are refused for {broken[0].field}"] += 1


def _fitted(
    choice: Choice, spec: RLJobSpec, config: dict[str, Any], shape: Shape, machine: Machine
) -> tuple[Choice, str]:
    """The layout, with fewer tokens in a micro-batch where it does not fit with the job's, and what is against it; empty: nothing."""
    changed = choice.of(spec, shape)
    reason = _against(changed, config, shape, machine)
    if not reason.startswith(TOO_LARGE):
        return choice, reason
    tokens = most_tokens(changed, lambda smaller: not _fills(smaller, shape, machine))
    if tokens is None:
        return choice, reason
    smaller = replace(choice, tokens=tokens)
    return smaller, _against(smaller.of(spec, shape), config, shape, machine)


def _against(spec: RLJobSpec, config: dict[str, Any], shape: Shape, machine: Machine) -> str:
    """Why a layout is no suggestion; empty: nothing is against it. By the estimate, with room for a sample at its longest."""
    of_layouts = chain.from_iterable(check(spec) for check in of_the_trainer(*RANKS_CHECKS))
    if any(of_layouts) or any(model_violations(spec, config)):
        return "break a rule of layouts"
    phase = _fills(spec, shape, machine)
    if phase:
        return f"{TOO_LARGE} in {phase}"
    cached = spec.supervised or cache_memory(spec, shape, machine.memory).holds_a_sample(spec)
    return "" if cached else "leave servers no room for a sample"


def _fills(spec: RLJobSpec, shape: Shape, machine: Machine) -> str:
    """The phase that takes most of a GPU, if that is more than it may; empty: none does."""
    fullest = max(phases(spec, shape, machine.memory), key=lambda phase: phase.total)
    return fullest.name if fullest.total > ROOM * machine.memory else ""


def put(spec: dict[str, Any], setting: tuple[str, Any]) -> dict[str, Any]:
    """A raw spec with a field of one of its sections set."""
    section, _, field = setting[0].partition(".")
    kept = spec.get(section)
    return spec | {section: (kept if isinstance(kept, dict) else {}) | {field: setting[1]}}
