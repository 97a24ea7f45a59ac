"""Rules about pools, and about the rewards and the distillation that use them: names, references, and how judges are asked."""

import re
from collections.abc import Iterator

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Judge, VllmReward
from rljob_api.validation.result import Violation

TEACHER = "spec.algorithm.distillation.pool"
VLLM_LOG_PROBS = 20
"""vLLM's default of max-logprobs; -1 means all (vllm/config/model.py)."""


def name_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Names of pools are unique, and none is a role: they are the roles of their pods."""
    for i, pool in enumerate(spec.pools):
        field = f"spec.pools[{i}].name"
        if pool.name in names.RESERVED_ROLES or names.is_model_role(pool.name):
            yield Violation(field, pool.name, "names another role of the job", "choose another name")
        if pool.name in [other.name for other in spec.pools[:i]]:
            yield Violation(field, pool.name, "stands twice", "every pool has a name of its own")


def reference_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Rewards and distillation name pools that exist, and every pool is asked by one of them."""
    known, asked = {pool.name for pool in spec.pools}, _named(spec)
    for field, name in asked.items():
        if name not in known:
            rule = f"spec.pools has {', '.join(sorted(known)) or 'no pool'}"
            yield Violation(field, name, rule, "name one of its pools, or add this one to it")
    for i, pool in enumerate(spec.pools):
        if pool.name not in asked.values():
            fix = f"remove it, or set vllm.pool: {pool.name} in one of spec.rewards, or algorithm.distillation.pool"
            yield Violation(f"spec.pools[{i}].name", pool.name, "nothing asks this pool", fix)


def _named(spec: RLJobSpec) -> dict[str, str]:
    """Pools by the fields that name them."""
    named = {f"{field}.pool": vllm.pool for field, vllm in _asking(spec) if vllm.pool}
    if (distillation := spec.algorithm.distillation) and distillation.pool:
        named[TEACHER] = distillation.pool
    return named


def distillation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A teacher's pool has to give log-probabilities, of the distribution that the policy samples from."""
    distillation, temperature = spec.algorithm.distillation, spec.rollout.sampling.temperature
    if distillation is None or not distillation.pool:
        return
    given = next((pool.vllm_args for pool in spec.pools if pool.name == distillation.pool), {})
    if given.get("runner") == "pooling":
        rule = f"spec.pools has {distillation.pool} with `runner: pooling`, whose model gives no log-probabilities"
        yield Violation(TEACHER, distillation.pool, rule, "remove `runner` from its vllmArgs")
    most, wanted = given.get("max-logprobs", VLLM_LOG_PROBS), distillation.top_k or 0
    if isinstance(most, int) and 0 <= most < wanted:
        rule = f"vLLM gives log-probabilities of {most} tokens at most, by its argument max-logprobs"
        fix = f"lower it, or set max-logprobs: {wanted} in the vllmArgs of pool {distillation.pool}"
        yield Violation("spec.algorithm.distillation.topK", f"{wanted}", rule, fix)
    if temperature != 1:
        rule = "a teacher's log-probabilities are those of temperature 1, and spec.algorithm.distillation compares them with the policy's"
        yield Violation(
            "spec.rollout.sampling.temperature",
            f"{temperature:g}",
            rule,
            "set 1, or remove spec.algorithm.distillation",
        )


def judge_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """How judges are asked, and how their scores are found. A model with `runner: pooling` gives no text."""
    runners = {pool.name: pool.vllm_args.get("runner") for pool in spec.pools}
    for field, vllm in _asking(spec):
        if vllm.judge is None:
            continue
        if "{response}" not in vllm.judge.prompt:
            fix = "put {response} where the text to be judged belongs"
            yield Violation(f"{field}.judge.prompt", _short(vllm.judge.prompt), "does not show the response", fix)
        if problem := _pattern_problem(vllm.judge):
            fix = "write one group around the number, for example `Score: ([0-9.]+)`"
            yield Violation(f"{field}.judge.score", vllm.judge.score, problem, fix)
        if runners.get(vllm.pool or "") == "pooling":
            rule = f"spec.pools has {vllm.pool} with `runner: pooling`, whose model answers with numbers"
            yield Violation(f"{field}.judge", "set", rule, "remove it, or remove `runner` from the pool's vllmArgs")


def _asking(spec: RLJobSpec) -> list[tuple[str, VllmReward]]:
    """Rewards on vLLM servers, with their fields."""
    return [(f"spec.rewards[{i}].vllm", reward.vllm) for i, reward in enumerate(spec.rewards) if reward.vllm]


def _pattern_problem(judge: Judge) -> str:
    try:
        groups = re.compile(judge.score).groups
    except re.error as error:
        return f"is no regular expression of Python: {error}"
    return "" if groups == 1 else f"has {groups} groups, of which the reward would be one"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


RULES = (name_violations, reference_violations, judge_violations, distillation_violations)
