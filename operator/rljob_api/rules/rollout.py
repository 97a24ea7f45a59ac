"""Servers, sampling, agents, and how far samples may lag behind the policy: `spec.rollout` and what spec.train says about generation."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import parsers_of
from rljob_api.rules.engine import (
    ADVANTAGE,
    AGENT,
    COLOCATED,
    RL,
    SERVICE,
    TURN,
    Check,
    Rule,
    Violation,
    as_given,
    count,
    field,
    present,
)
from rljob_api.rules.key_tables import REASONING_PARSERS, TOOL_PARSERS
from rljob_api.spec import RLJobSpec
from rljob_api.text import nearest

ASKED_BY_THE_DRIVER = ("environment", "openEnv", "nemoGym")
"""Kinds of agents that run in no process of ours."""
AGENT_KINDS = ("python", "tools", "environment", "verifiers", "skyrlGym", "reasoningGym", "openEnv", "nemoGym")
REPLICAS, MINIMUM = field("rollout.replicas"), field("rollout.minReplicas")
TENSOR, COPIES = field("rollout.tensorParallel"), field("rollout.dataParallel")
REPLAYED = present("train.batches.replay")
WORKERS = present("rollout.agent.workers")
INTERRUPT = field("rollout.interrupt")
CONTINUES = INTERRUPT.is_in(("continue", "keep"))

OBJECT_RULES = (
    Rule(
        "rollout.replicas",
        RL | SERVICE | REPLICAS.equals(1),
        "only the tasks rl and service have rollouts, which are what `kubectl scale` changes",
        "remove it; spec.trainer.nodes is the size of the gang",
    ),
    Rule(
        "rollout.replicas",
        (RL | SERVICE).implies((REPLICAS > 0) | REPLAYED | COLOCATED),
        "nothing would generate",
        "set at least 1, or spec.train.batches.replay",
    ),
    Rule(
        "rollout.replicas",
        COLOCATED.implies(REPLICAS <= 1),
        "colocated servers are on all of the trainer's GPUs, one for every tensorParallel x dataParallel of its ranks, and never on a part of them",
        "remove it, or set spec.rollout.placement: separate",
    ),
    Rule(
        "rollout.minReplicas",
        RL.implies((MINIMUM <= REPLICAS) | REPLAYED | COLOCATED),
        "generation would wait forever for more servers than {0}",
        "set at most spec.rollout.replicas",
        (REPLICAS,),
    ),
    Rule(
        "rollout.tensorParallel",
        COLOCATED.implies(field("rollout.tensorParallel").divides(field("trainer.processesPerNode"))),
        "{0} is not divisible by it",
        "choose a divisor of spec.trainer.processesPerNode",
        (field("trainer.processesPerNode"),),
    ),
    Rule(
        "rollout.dataParallel",
        COLOCATED.implies(COPIES.equals(1) | (TENSOR * COPIES).divides(field("trainer.processesPerNode"))),
        "{0} is not divisible by {1} times it",
        "lower it, or raise spec.trainer.processesPerNode",
        (field("trainer.processesPerNode"), TENSOR),
    ),
    Rule(
        "train.staleness",
        COLOCATED.implies(field("train.staleness").equals(0)),
        "colocated servers sleep while the policy is trained, so they cannot generate the next batch at that time",
        "set 0, or spec.rollout.placement: separate",
    ),
    Rule(
        "train.staleness",
        REPLAYED.implies(field("train.staleness").equals(0)),
        "recorded batches are replayed as they are",
        "remove it",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(field("train.staleness") > 0),
        "nothing is generated when a new policy comes, because spec.train.staleness is 0",
        "set spec.train.staleness of at least 1, or remove it",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(field("train.overSampling").equals(1.0)),
        "every prompt that is begun is trained within spec.train.staleness, and spec.train.overSampling begins more than that",
        "remove spec.train.overSampling, or set wait",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(~ADVANTAGE.equals("remax")),
        "the baseline of remax is the greedy response of one policy, the samples would be of several",
        "set wait, or choose another advantage",
    ),
    Rule(
        "rollout.sampling.temperature",
        field("rollout.sampling.temperature") > 0.0,
        "all greedy responses to a prompt are equal, so there is nothing to compare",
        "set a temperature above 0; spec.evaluation.sampling may be greedy",
    ),
    Rule(
        "rollout.agent",
        AGENT.implies(count(tuple(present(f"rollout.agent.{kind}") for kind in AGENT_KINDS)).equals(1)),
        f"needs exactly one of {', '.join(AGENT_KINDS)}",
        "keep one of them",
        value=lambda spec: " and ".join(k for k in AGENT_KINDS if present(f"rollout.agent.{k}").of(spec)) or "none",
    ),
    Rule(
        "rollout.agent.workers",
        AGENT.implies(
            WORKERS.implies(count(tuple(present(f"rollout.agent.{kind}") for kind in ASKED_BY_THE_DRIVER)).equals(0))
        ),
        f"the trainer itself asks the service of {' or '.join(ASKED_BY_THE_DRIVER)}, so that workers would have nothing to do",
        "remove it",
        value="set",
    ),
    Rule(
        "rollout.agent.workers",
        AGENT.implies(~(WORKERS & REPLAYED)),
        "recorded batches are replayed as they are, so that workers would have nothing to do",
        "remove it, or spec.train.batches.replay",
        value="set",
    ),
    Rule(
        "rollout.agent.maxTokens",
        AGENT.implies(field("rollout.agent.maxTokens") >= TURN),
        "a turn may have {0} tokens, and has to fit into the trajectory",
        "raise it, or lower spec.rollout.sampling.maxTokens",
        (TURN,),
    ),
)

ROUNDING = 1e-6
"""Largest rounding error of a fraction times a number of prompts."""


def staleness_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Tokens of an older policy need a correction for their age."""
    correction, train = spec.rollout_correction, spec.train
    older = {
        "spec.train.staleness": str(train.staleness) if train.staleness else None,
        "spec.train.partialRollouts": train.partial_rollouts and as_given(train.partial_rollouts),
    }
    for where, value in older.items():
        if value and correction.importance_sampling == "none" and not correction.bypass:
            yield Violation(
                where,
                value,
                "tokens are drawn by a policy before the one that they train, and nothing corrects for it",
                "set spec.algorithm.rolloutCorrection.importanceSampling to token, or bypass: true",
            )


def interrupt_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings with which a response cannot continue under another policy."""
    if spec.rollout.interrupt != "wait" and spec.rollout.sampling.stop:
        yield Violation(
            "spec.rollout.interrupt",
            spec.rollout.interrupt,
            "a text of spec.rollout.sampling.stop that begins in one part of a response and ends in the next would not be seen",
            "set wait, or remove spec.rollout.sampling.stop",
        )


def over_sampling_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Over-sampling starts a whole number of prompts, and needs generation."""
    where, train = "spec.train.overSampling", spec.train
    value = f"{train.over_sampling:g}"
    more = train.over_sampling > 1
    if abs(train.over_sampling * train.prompts_per_step - train.prompts_begun) > ROUNDING:
        yield Violation(
            where,
            value,
            f"times spec.train.promptsPerStep = {train.prompts_per_step} is no number of prompts",
            f"set {_shortest(train.prompts_begun, train.prompts_per_step)}, which begins {train.prompts_begun}",
        )
    if more and train.batches.replay:
        yield Violation(where, value, "recorded batches are replayed as they are", "remove it")


def _shortest(begun: int, prompts: int) -> str:
    """The share of the prompts that are begun, with as many digits as the rule needs to take it."""
    texts = (f"{begun / prompts:.{digits}g}" for digits in range(1, 18))
    return next(text for text in texts if abs(float(text) * prompts - begun) <= ROUNDING)


def partial_rollouts_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Partial rollouts need prompts that are left over, and settings with which they can continue."""
    where, train = "spec.train.partialRollouts", spec.train
    if train.partial_rollouts is None:
        return
    if train.over_sampling == 1:
        yield Violation(
            where,
            as_given(train.partial_rollouts),
            "a step that begins no more prompts than it needs waits for all of them and leaves nothing over",
            "set spec.train.overSampling, for example to 1.5",
        )
    if train.partial_rollouts.max_age <= train.staleness:
        yield Violation(
            f"{where}.maxAge",
            str(train.partial_rollouts.max_age),
            f"with spec.train.staleness = {train.staleness} every token is as old, so that nothing could wait for the next step",
            f"set at least {train.staleness + 1}",
        )
    if spec.rollout.sampling.stop:
        yield Violation(
            where,
            as_given(train.partial_rollouts),
            "a text of spec.rollout.sampling.stop that begins in one part of a response and ends in the next would not be seen",
            "remove one of both",
        )
    if spec.algorithm.advantage == "remax":
        yield Violation(
            where,
            "with spec.algorithm.advantage remax",
            "the baseline is the greedy response of one policy, the samples would be of several",
            "remove it, or choose another advantage",
        )


def parser_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Parsers are those of the pinned vLLM."""
    agent = spec.rollout.agent
    if agent is None:
        return
    for where, name, known in (
        ("toolParser", agent.tool_parser, TOOL_PARSERS),
        ("reasoningParser", agent.reasoning_parser, REASONING_PARSERS),
    ):
        if name and name not in known:
            near = nearest(name, known)
            fix = f"did you mean {near}?" if near else f"use one of {', '.join(sorted(known))}"
            yield Violation(f"spec.rollout.agent.{where}", name, "the pinned vLLM has no such parser", fix)


def tool_parser_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Functions that the policy calls, whose calls nobody could read. Other agents may have no tools. `config`: the model's config.json."""
    agent = spec.rollout.agent
    if agent and agent.tools and not parsers_of(agent.tool_parser, None, config).tools:
        rule = f"models of model_type {config.get('model_type')} have no format of calls in common"
        fix = "name the parser of vLLM that reads what this model writes"
        yield Violation("spec.rollout.agent.toolParser", "unset", rule, fix)


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    parser_violations,
    staleness_violations,
    interrupt_violations,
    over_sampling_violations,
    partial_rollouts_violations,
)
