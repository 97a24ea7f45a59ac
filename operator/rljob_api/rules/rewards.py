"""What tells good responses from bad ones: rewards, the pools that they ask, and the teacher of a distillation. And the pods of their own in which
reward functions and agents run."""

import re
from collections.abc import Iterator

from rljob_api import names
from rljob_api.rules.engine import AGENT, TEACHER, Check, Rule, Violation, count, field, present, repeated
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import MOST_PODS
from rljob_api.spec.model import Judge, RewardSpec, VllmReward

REWARD_KINDS = ("rule", "python", "http", "vllm", "model")
KIND_COUNT = count(tuple(present(kind) for kind in REWARD_KINDS))

TOP_K, TAUGHT_BY_REFERENCE = present("algorithm.distillation.topK"), field("algorithm.distillation.reference")

OBJECT_RULES = (
    Rule(
        "",
        KIND_COUNT.equals(1),
        f"needs exactly one of {', '.join(REWARD_KINDS)}",
        "keep one of them",
        value=lambda reward: " and ".join(kind for kind in REWARD_KINDS if present(kind).of(reward)) or "none",
        items="rewards",
    ),
    Rule(
        "vllm",
        present("vllm").implies(count((present("vllm.pool"), present("vllm.url"))).equals(1)),
        "needs exactly one of pool and url",
        "name one of spec.pools, or give the address of a server outside the job",
        value=lambda reward: "both" if reward.vllm.pool else "none",
        items="rewards",
    ),
    Rule(
        "workers",
        present("workers").implies(present("python") | (present("rule") & field("rule").equals("math"))),
        "only python and rule: math run in processes of their own, so that workers would have nothing to do",
        "remove it",
        value="set",
        items="rewards",
    ),
    Rule(
        "algorithm.distillation",
        TEACHER.implies(count((present("algorithm.distillation.pool"), TAUGHT_BY_REFERENCE)).equals(1)),
        "needs exactly one of pool and reference",
        "name one of spec.pools, or set reference: true for the model of spec.reference",
        value=lambda spec: "both" if spec.algorithm.distillation.reference else "none",
    ),
    Rule(
        "algorithm.distillation.reference",
        (TEACHER & TAUGHT_BY_REFERENCE).implies(present("reference.path") | present("reference.megatronCheckpoint")),
        "the reference is the policy as it begins, which has nothing to teach it",
        "name the teacher in spec.reference.path or spec.reference.megatronCheckpoint",
    ),
    Rule(
        "algorithm.kl.coefficient",
        (TEACHER & TAUGHT_BY_REFERENCE).implies(field("algorithm.kl.coefficient").equals(0.0)),
        "the reference is the teacher, so that the penalty would draw towards it a second time",
        "remove it, and set spec.algorithm.distillation.coefficient",
    ),
    Rule(
        "algorithm.distillation.topK",
        (TEACHER & TOP_K).implies(field("algorithm.distillation.where").equals("loss")),
        "a reward is of the token that was sampled, and of no other",
        "set where: loss, or remove it",
    ),
    Rule(
        "algorithm.distillation.topK",
        (TEACHER & TOP_K).implies(present("algorithm.distillation.pool")),
        "the reference says of the sampled tokens alone how likely they are",
        "name a pool as the teacher, or remove it",
    ),
)

TEACHER_POOL = "spec.algorithm.distillation.pool"
VLLM_LOG_PROBS = 20
"""vLLM's default of max-logprobs; -1 means all (vllm/config/model.py)."""


def name_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Names of pools are unique, and none is a role: they are the roles of their pods."""
    named = [pool.name for pool in spec.pools]
    for i, name in enumerate(named):
        if _is_taken(name):
            yield Violation(f"spec.pools[{i}].name", name, "names another role of the job", "choose another name")
    yield from repeated("spec.pools[{}].name", named, "every pool has a name of its own")


def _is_taken(name: str) -> bool:
    """Whether a role has the name."""
    numbered = names.is_model_role(name) or names.is_worker_role(name) or names.is_sandbox_role(name)
    return name in names.RESERVED_ROLES or numbered


def reference_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Rewards and distillation name pools that exist, and every pool is asked by one of them."""
    known, asked = {pool.name for pool in spec.pools}, _named(spec)
    for where, name in asked.items():
        if name not in known:
            rule = f"spec.pools has {', '.join(sorted(known)) or 'no pool'}"
            yield Violation(where, name, rule, "name one of its pools, or add this one to it")
    for i, pool in enumerate(spec.pools):
        if pool.name not in asked.values():
            fix = f"remove it, or set vllm.pool: {pool.name} in one of spec.rewards, or algorithm.distillation.pool"
            yield Violation(f"spec.pools[{i}].name", pool.name, "nothing asks this pool", fix)


def _named(spec: RLJobSpec) -> dict[str, str]:
    """Pools by the fields that name them."""
    named = {f"{where}.pool": vllm.pool for where, vllm in _asking(spec) if vllm.pool}
    distillation = spec.algorithm.distillation
    if distillation and distillation.pool:
        named[TEACHER_POOL] = distillation.pool
    return named


def distillation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A teacher's pool has to give log-probabilities, of the distribution that the policy samples from."""
    distillation, temperature = spec.algorithm.distillation, spec.rollout.sampling.temperature
    if distillation is None or not distillation.pool:
        return
    given = next((pool.vllm_args for pool in spec.pools if pool.name == distillation.pool), {})
    if given.get("runner") == "pooling":
        rule = f"spec.pools has {distillation.pool} with `runner: pooling`, whose model gives no log-probabilities"
        yield Violation(TEACHER_POOL, distillation.pool, rule, "remove `runner` from its vllmArgs")
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
    for where, vllm in _asking(spec):
        if vllm.judge is None:
            continue
        if "{response}" not in vllm.judge.prompt:
            fix = "put {response} where the text to be judged belongs"
            yield Violation(f"{where}.judge.prompt", _short(vllm.judge.prompt), "does not show the response", fix)
        if problem := _pattern_problem(vllm.judge):
            fix = "write one group around the number, for example `Score: ([0-9.]+)`"
            yield Violation(f"{where}.judge.score", vllm.judge.score, problem, fix)
        if runners.get(vllm.pool or "") == "pooling":
            rule = f"spec.pools has {vllm.pool} with `runner: pooling`, whose model answers with numbers"
            yield Violation(f"{where}.judge", "set", rule, "remove it, or remove `runner` from the pool's vllmArgs")


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


def reward_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Reward models on the trainer's ranks score after generation, so nothing may need their rewards during it."""
    users = {
        "spec.algorithm.dynamicSampling": spec.algorithm.dynamic_sampling is not None,
        "spec.algorithm.advantage": spec.algorithm.advantage == "remax",
        "spec.evaluation": spec.evaluation.takes_place,
    }
    late = [i for i, reward in enumerate(spec.rewards) if reward.model]
    for where in (f for f, used in users.items() if used and late):
        if where == "spec.evaluation" and not _scored_by_models_only(spec.rewards):
            continue
        yield Violation(
            where,
            f"with spec.rewards[{late[0]}].model",
            "a reward model on the trainer's ranks judges after generation, this needs rewards during it",
            "serve the model with vLLM and name it under vllm, or leave this out",
        )


def worker_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Workers have something to score."""
    for i, reward in enumerate(spec.rewards):
        if reward.workers and spec.train.batches.replay:
            rule = "recorded batches are replayed as they are, so that workers would have nothing to do"
            yield Violation(f"spec.rewards[{i}].workers", "set", rule, "remove it, or spec.train.batches.replay")


def autoscaling_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The number of pods may change while an attempt runs."""
    backend = spec.scheduling.backend
    for role, workers in spec.workers.items() if not spec.scheduling.facts.scalable else ():
        if workers.autoscaling:
            rule = f"{backend} keeps the number of pods with which it has admitted a job"
            fix = "remove it, or set another spec.scheduling.backend"
            yield Violation(f"{spec.field_of(role)}.autoscaling", "set", rule, fix)


def _scored_by_models_only(rewards: list[RewardSpec]) -> bool:
    return all(reward.model for reward in rewards)


MOST_CONNECTIONS = 8 * MOST_PODS
"""Of worker processes to the driver: those of as many pods as a job may have, with as many processes as they have by default at most."""


def _connections(section: str = "", items: str = "") -> Rule:
    """How many processes of its workers a section may have. `section`: it or its entries have `workers`."""
    replicas, processes = field(f"{section}workers.replicas"), field(f"{section}workers.processes")
    given = present(f"{section}workers.processes")
    few = present(f"{section}workers").implies(given.implies(replicas * processes <= MOST_CONNECTIONS))
    return Rule(
        f"{section}workers.processes",
        few if items else AGENT.implies(few),
        f"the driver has a connection for each process, and {{0}} times it is more than the {MOST_CONNECTIONS} that it can have",
        "lower one of them",
        (replicas,),
        items=items,
    )


def _fewest(section: str = "", items: str = "") -> Rule:
    """How many pods of its workers a section has at least. `section`: it or its entries have `workers`."""
    replicas, fewest = field(f"{section}workers.replicas"), field(f"{section}workers.autoscaling.minReplicas")
    given = present(f"{section}workers.autoscaling")
    few = present(f"{section}workers").implies(given.implies(fewest <= replicas))
    return Rule(
        f"{section}workers.autoscaling.minReplicas",
        few if items else AGENT.implies(few),
        "there are at most {0} pods",
        "lower it, or raise replicas",
        (replicas,),
        items=items,
    )


WORKER_RULES = tuple(
    rule for make in (_connections, _fewest) for rule in (make("rollout.agent."), make(items="rewards"))
)

RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    *WORKER_RULES,
    reward_violations,
    worker_violations,
    autoscaling_violations,
    name_violations,
    reference_violations,
    judge_violations,
    distillation_violations,
)
