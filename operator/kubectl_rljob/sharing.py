"""Whether a job would be faster if two of its colocated servers shared each GPU, by the model of a step: while one of their engines schedules, the
other one computes. `plan` changes nothing, and says what to set.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from kubectl_rljob.planning import Plan
from rljob_api.rules.validator import broken_rules
from rljob_api.sizing.devices import GIB
from rljob_api.sizing.server_arguments import CACHE, SHARE
from rljob_api.sizing.speed import Speed
from rljob_api.spec import RLJobSpec

WORTH = 0.95
"""A step that takes less than this part of the job's is worth its memory."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The job with two servers on each GPU."""

    cache: int
    """Bytes for keys and values of each."""
    speed: Speed

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the spec that make a job have them."""
        return {"rollout.serversPerGpu": 2, f"rollout.vllmArgs.{CACHE}": self.cache}


def sharing(plan: Plan, taken: Speed) -> Sharing | None:
    """`taken`: of the plan as it is. None where the model of a step does not say that it would be faster, where it would not fit, and where rules are
    against it."""
    cache = plan.cache()
    if plan.spec is None or cache is None or plan.violations or not _is_alone(plan.spec):
        return None
    each = math.ceil(min(cache.there, cache.wanted) / 2 / GIB) * GIB
    spec = _with_two(plan.spec, each)
    other = replace(plan, spec=spec)
    faster = other.speed()
    if faster is None or faster.seconds > WORTH * taken.seconds or other.doubts():
        return None
    broken = next(broken_rules(spec, plan.model or {}), None)
    return Sharing(each, faster) if broken is None else None


def _is_alone(spec: RLJobSpec) -> bool:
    """Colocated, and on one GPU without others: the only servers that may share it."""
    servers = spec.rollout
    return servers.placement == "colocated" and servers.gpus == 1 and servers.servers_per_gpu == 1


def _with_two(spec: RLJobSpec, cache: int) -> RLJobSpec:
    """Each with a cache of so many bytes, which takes the place of a share of the GPU."""
    arguments = {key: value for key, value in spec.rollout.vllm_args.items() if key != SHARE} | {CACHE: cache}
    rollout = spec.rollout.model_copy(update={"servers_per_gpu": 2, "vllm_args": arguments})
    return spec.model_copy(update={"rollout": rollout})
