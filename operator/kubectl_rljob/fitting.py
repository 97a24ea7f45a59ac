"""Why a job does not fit on its GPUs and hosts: what is certain of the estimates behind `plan`. It ends `plan` as a broken rule does."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubectl_rljob import gib
from kubectl_rljob.remedies import Remedy
from rljob_api import names
from rljob_api.families import has_windows
from rljob_api.rules import Violation
from rljob_api.sizing.devices import GIB, Gpu
from rljob_api.sizing.host import HostMemory
from rljob_api.sizing.memory import CacheMemory, PhaseMemory, TrainerMemory
from rljob_api.sizing.replica import RolloutHost, longest_context
from rljob_api.sizing.server_arguments import CACHE, may_be_smaller, may_have_room
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template

SEARCH = "`plan --suggest` searches layouts"
FIX = f"docs/sizing.md has what to change, by its cost; {SEARCH}"
SMALLEST = 2**20
"""Bytes of memory without which no container starts: a limit below it lacks its unit."""
FAR = 4.0
"""Of a GPU's memory. What needs more by the estimate does not fit. Estimates were up to 1.5 times what was measured, and of a stage with selective
recomputation of `mlp`, which they do not follow, they are up to 3.5 times what there is."""

ROOM = 0.95
"""Of a GPU's memory, into which suggestions have to fit: estimates were up to 7 % too low, and an allocator cannot use all."""


def tight(phases: Sequence[PhaseMemory], device: Gpu) -> list[PhaseMemory]:
    """Phases that do not fit by the estimate alone."""
    return [p for p in phases if p.certain <= device.bytes < p.total <= FAR * device.bytes]


def refused(phases: Sequence[PhaseMemory], device: Gpu) -> list[PhaseMemory]:
    """Phases that do not fit, even if the estimate is too high."""
    return [p for p in phases if p.certain > device.bytes or p.total > FAR * device.bytes]


def of_trainer(
    phases: Sequence[PhaseMemory], device: Gpu, find_remedy: Callable[[], Remedy | None]
) -> Iterator[Violation]:
    """`find_remedy`: the one field that makes all of them fit."""
    never, hardly = refused(phases, device), tight(phases, device)
    if not never:
        return
    also = f", and by the estimate not in {_named(hardly)}" if hardly else ""
    start = any(p.certain > device.bytes for p in never)
    why = "ranks would refuse to start" if start else f"that is more than {FAR:g} times the GPU"
    remedy = find_remedy()
    into = f" into {_gpu(device)}" if remedy else ""
    rule = f"the job does not fit{into} in {_named(never)}{also}: {why}"
    if remedy:
        yield Violation(remedy.field, remedy.value, rule, f"{remedy.fix}; {SEARCH}")
    else:
        yield Violation("spec.trainer", _gpu(device), rule, FIX)


def of_gangs(spec: RLJobSpec, gangs: Mapping[str, TrainerMemory], device: Gpu) -> Iterator[Violation]:
    for role, needed in gangs.items():
        certain = needed.weights, needed.gradients, needed.optimizer
        if sum(certain) > device.bytes:
            rule = f"its weights, gradients and optimizer take {gib.total(certain):.1f} GiB of a GPU"
            yield Violation(spec.field_of(role), _gpu(device), rule, FIX)
        elif needed.total > FAR * device.bytes:
            rule = f"it takes {gib.whole(needed)} GiB of a GPU, more than {FAR:g} times what there is"
            yield Violation(spec.field_of(role), _gpu(device), rule, FIX)


def of_servers(spec: RLJobSpec, caches: Mapping[str, float], device: Gpu) -> Iterator[Violation]:
    """`caches`: bytes that are left for keys and values, by role."""
    for role, there in caches.items():
        if there <= 0 and not may_be_smaller(arguments(spec, role)):
            rule = f"the weights of a server take {gib.text(-there)} GiB per GPU more than vLLM may have there"
            fix = f"raise {spec.field_of(role)}.tensorParallel, or gpu-memory-utilization in its vllmArgs"
            yield Violation(f"{spec.field_of(role)}.tensorParallel", str(spec.processes_of(role)), rule, fix)


def arguments(spec: RLJobSpec, role: str) -> Mapping[str, Any]:
    """`vllmArgs` of the servers of a role."""
    return next((p.vllm_args for p in spec.pools if p.name == role), spec.rollout.vllm_args)


def doubts(
    spec: RLJobSpec,
    phases: Sequence[PhaseMemory],
    gangs: Mapping[str, TrainerMemory],
    caches: Mapping[str, float],
    device: Gpu,
    find_remedy: Callable[[], Remedy | None],
) -> Iterator[str]:
    """What may not fit, and what does if the estimates are too high. `gangs`, `caches` as in `of_gangs` and `of_servers`, `find_remedy` as in
    `of_trainer`."""
    if hardly := tight(phases, device):
        remedy = find_remedy()
        fix = f"{remedy.field}: {remedy.fix}; {SEARCH}" if remedy else FIX
        yield f"in {_named(hardly)} of {_gpu(device)} ({fix})"
    for role, held in gangs.items():
        if held.total > device.bytes:
            yield f"in the gang of {role} ({gib.whole(held)} GiB) of {_gpu(device)}"
    for role, there in caches.items():
        given = may_be_smaller(arguments(spec, role)) if there <= 0 else []
        if given:
            named = " and ".join(f"{key} = {arguments(spec, role)[key]}" for key in given)
            yield f"in servers of {spec.field_of(role)}, whose weights are counted without {named}"


def short_cache(spec: RLJobSpec, cache: CacheMemory) -> Iterator[Violation]:
    """A server whose weights fit, and no sample at its longest: vLLM does not start it."""
    if not is_short(spec, cache):
        return
    field, given = spec.field_of(names.ROLE_ROLLOUT), arguments(spec, names.ROLE_ROLLOUT)
    rule = f"the cache of a server has {_room(spec, cache)}, and vLLM starts with no less"
    if size := given.get(CACHE):
        needed = math.ceil(cache.there * longest_context(spec) * spec.rollout.data_parallel / cache.tokens)
        removable = ", or remove it" if spec.rollout.servers_per_gpu == 1 else ""
        yield Violation(f"{field}.vllmArgs.{CACHE}", str(size), rule, f"set at least {needed}{removable}")
    else:
        fix = f"raise it, or gpu-memory-utilization in {field}.vllmArgs, or lower {field}.sampling.maxTokens"
        yield Violation(f"{field}.tensorParallel", str(spec.rollout.tensor_parallel), rule, fix)


def doubtful_cache(spec: RLJobSpec, cache: CacheMemory, why: str) -> Iterator[str]:
    """The same, where a server may have room for more. `why`: see `uncertain_room`."""
    if is_short(spec, cache):
        yield f"in servers of {spec.field_of(names.ROLE_ROLLOUT)}, whose cache has {_room(spec, cache)}, {why}"


def is_short(spec: RLJobSpec, cache: CacheMemory) -> bool:
    return cache.there > 0 and not cache.holds_a_sample(spec)


def uncertain_room(spec: RLJobSpec, config: dict[str, Any]) -> str:
    """Why a rollout server may have room for more tokens than are counted; empty: it has not."""
    given = arguments(spec, names.ROLE_ROLLOUT)
    if named := may_have_room(given):
        return "counted without " + " and ".join(f"{key} = {given[key]}" for key in named)
    return "counted as if all layers attended to all tokens" if has_windows(config) else ""


def _room(spec: RLJobSpec, cache: CacheMemory) -> str:
    """Of one data-parallel copy."""
    room = cache.tokens / spec.rollout.data_parallel
    return f"room for {room:,.0f} of the {longest_context(spec):,} tokens of a sample"


def of_host(role: str, held: HostMemory | RolloutHost, template: Template) -> Iterator[Violation]:
    """`held`: in the host memory of a pod of that template."""
    limit = template.memory_limit
    if limit and held.total > limit:
        rule = f"the job keeps {gib.whole(held)} GiB in the host memory of a {role} pod, which would end with OOMKilled"
        fix = f"raise it to {math.ceil(held.total / GIB)}Gi or more, or lower what is kept there: docs/sizing.md#host-memory"
        if limit < SMALLEST:
            fix = f"write its unit, for example {template.resources.limits['memory']}Gi: without one it is bytes"
        yield Violation(
            f"spec.{role}.template.resources.limits.memory", str(template.resources.limits["memory"]), rule, fix
        )


def _named(phases: Sequence[PhaseMemory]) -> str:
    return ", ".join(f"{p.name} ({gib.whole(p.parts)} GiB)" for p in phases)


def _gpu(device: Gpu) -> str:
    return f"GPUs of {gib.text(device.bytes)} GiB"
