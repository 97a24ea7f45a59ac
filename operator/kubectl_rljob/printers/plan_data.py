"""What `plan` knows of a job, for -o json and -o yaml."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic.alias_generators import to_camel

from kubectl_rljob.planning import Plan, roles
from kubectl_rljob.sharing import sharing
from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.sizing.memory import PhaseMemory
from rljob_api.spec import RLJobSpec

Value = TypeVar("Value")


def dump(plan: Plan) -> dict[str, Any]:
    """The amounts are there only when every rule holds."""
    out: dict[str, Any] = {
        "name": plan.name,
        "violations": [asdict(v) for v in (*plan.violations, *plan.misfits())],
    }
    if unusual := plan.advice():
        out["advice"] = [asdict(v) for v in unusual]
    out["defaults"] = {"skipped": plan.unread} if plan.unread else plan.taken
    if plan.spec is None or plan.violations:
        return out
    return out | _layouts(plan, plan.spec) | _memory(plan) | _bytes(plan) | {"roles": _roles(plan.spec)}


def _layouts(plan: Plan, spec: RLJobSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"layout": _layout(spec, names.ROLE_TRAINER)}
    if stages := plan.stages():
        out["stages"] = asdict(stages)
    if spec.gangs:
        out["gangs"] = {role: _layout(spec, role) for role in spec.gangs}
    if spec.evaluation.only:
        return out
    amounts = Amounts.of(spec)
    out["batch"] = {
        "samplesPerStep": amounts.samples_per_step,
        "samplesPerMiniBatch": amounts.samples_per_mini_batch,
        "tokensPerStep": amounts.longest * amounts.samples_per_step,
    }
    if amounts.optimizer_steps is not None:
        out["batch"]["optimizerSteps"] = amounts.optimizer_steps
    return out


def _memory(plan: Plan) -> dict[str, Any]:
    out: dict[str, Any] = {"memory": {e.role: _rounded(_camel(e.parts)) for e in plan.memory()}}
    if phases := plan.phases():
        out["gpu"] = asdict(plan.device) if plan.device else {}
        out["phases"] = {phase.name: _phase(phase) for phase in phases}
    if host := plan.host():
        out["hostMemory"] = _rounded(asdict(host))
    if arriving := plan.arrival():
        out["rolloutHostMemory"] = _rounded(asdict(arriving[1])) | {"nextPolicy": arriving[0].where}
    if cache := plan.cache():
        out["kvCache"] = _rounded(asdict(cache))
    if caches := plan.pool_caches():
        out["poolKvCache"] = _rounded(caches)
    if ways := plan.ways():
        out["serverWays"] = [way.dump() for way in ways.accepted]
    if uncounted := plan.not_counted():
        out["notCounted"] = uncounted
    if doubts := plan.doubts():
        out["mayNotFit"] = doubts
    return out


def _phase(phase: PhaseMemory) -> dict[str, int]:
    sums = {"state": phase.state, "estimate": phase.estimate, "total": phase.total}
    return _rounded(asdict(phase.parts) | sums)


def _bytes(plan: Plan) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if volume := plan.volume():
        out["volume"] = _rounded(asdict(volume) | {"total": volume.total})
    traffic = plan.traffic()
    if traffic:
        out["traffic"] = {name: _rounded(asdict(flow)) for name, flow in traffic.items()}
    if plan.cards:
        for name, flow in traffic.items():
            out["traffic"][name]["seconds"] = round(flow.seconds(plan.cards), 3)
    if taken := plan.speed():
        parts = taken.phases | {"seconds": taken.seconds}
        out["modelledStep"] = {name: round(seconds, 3) for name, seconds in parts.items()}
        out["modelledStep"]["tokensPerSecond"] = round(taken.tokens_per_second)
        if faster := sharing(plan, taken):
            out["faster"] = {"settings": faster.settings, "seconds": round(faster.speed.seconds, 3)}
    if outside := plan.outside():
        out["outsideVolumes"] = outside
    return out


def _roles(spec: RLJobSpec) -> list[dict[str, Any]]:
    return [{"name": role.name, "pods": role.pods, "gpus": role.gpus} for role in roles(spec)]


def _layout(spec: RLJobSpec, role: str) -> dict[str, int]:
    """Its sizes."""
    layout = Layout.of(spec, role)
    return {**_camel({name: size for name, size in asdict(layout).items() if name != "cut"}), "data": layout.data}


def _rounded(parts: Mapping[str, Any]) -> dict[str, int]:
    return {name: round(value) for name, value in parts.items()}


def _camel(parts: Mapping[str, Value]) -> dict[str, Value]:
    return {to_camel(key): value for key, value in parts.items()}
