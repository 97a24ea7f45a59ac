"""Whether a job would be faster if two of its colocated servers shared each GPU, by the model of a step: while one of their engines schedules, the
other one computes. `plan` changes nothing, and says what to set.
"""

import math
from dataclasses import dataclass, replace

from kubectl_rljob.planning import Plan
from rljob_api.rules.validator import broken_rules
from rljob_api.sizing.speed import Speed
from rljob_api.spec import RLJobSpec

GIB = 2**30
CACHE, SHARE = "kv-cache-memory-bytes", "gpu-memory-utilization"
WORTH = 0.95
"""A step that takes less than this part of the job's is worth its memory."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The job with two servers on each GPU."""

    cache: int
    """Bytes for keys and values of each."""
    before: Speed
    speed: Speed


def sharing(plan: Plan) -> Sharing | None:
    """None where no model of a step says that it would be faster, where it would not fit, and where rules are against it."""
    taken, cache = plan.speed(), plan.cache()
    if plan.spec is None or taken is None or cache is None or plan.violations or not _is_alone(plan.spec):
        return None
    each = math.ceil(min(cache.there, cache.wanted) / 2 / GIB) * GIB
    other = replace(plan, spec=_with_two(plan.spec, each))
    faster = other.speed()
    if faster is None or faster.seconds > WORTH * taken.seconds or other.doubts() or _breaks_rules(other):
        return None
    return Sharing(each, taken, faster)


def _is_alone(spec: RLJobSpec) -> bool:
    """Colocated, and on one GPU without others: the only servers that may share it."""
    servers = spec.rollout
    return servers.placement == "colocated" and servers.gpus == 1 and servers.servers_per_gpu == 1


def _with_two(spec: RLJobSpec, cache: int) -> RLJobSpec:
    """Each with a cache of so many bytes, which takes the place of a share of the GPU."""
    arguments = {key: value for key, value in spec.rollout.vllm_args.items() if key != SHARE} | {CACHE: cache}
    rollout = spec.rollout.model_copy(update={"servers_per_gpu": 2, "vllm_args": arguments})
    return spec.model_copy(update={"rollout": rollout})


def _breaks_rules(plan: Plan) -> bool:
    return plan.spec is None or any(True for _ in broken_rules(plan.spec, plan.model or {}))
