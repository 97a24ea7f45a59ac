"""Rules of `spec.rollout`: servers, sampling, agents, and how far samples may lag behind the policy."""

from rljob_api.validation.expression import count, field, present
from rljob_api.validation.object_rules.common import ADVANTAGE, AGENT, COLOCATED, RL, TURN
from rljob_api.validation.rule import Rule

AGENT_KINDS = ("python", "tools", "environment")
REPLICAS, MINIMUM = field("rollout.replicas"), field("rollout.minReplicas")
REPLAYED = present("train.batches.replay")
CONTINUES = field("rollout.interrupt").equals("continue")

ROLLOUT_RULES = (
    Rule(
        "rollout.replicas",
        RL | REPLICAS.equals(1),
        "only task rl has rollouts, which are what `kubectl scale` changes",
        "remove it; spec.trainer.nodes is the size of the gang",
    ),
    Rule(
        "rollout.replicas",
        RL.implies((REPLICAS > 0) | REPLAYED | COLOCATED),
        "nothing would generate",
        "set at least 1, or spec.train.batches.replay",
    ),
    Rule(
        "rollout.replicas",
        COLOCATED.implies(REPLICAS <= 1),
        "colocated servers are on all of the trainer's GPUs, one for every tensorParallel of its ranks, and never on a part of them",
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
        "rollout.agent.maxTokens",
        AGENT.implies(field("rollout.agent.maxTokens") >= TURN),
        "a turn may have {0} tokens, and has to fit into the trajectory",
        "raise it, or lower spec.rollout.sampling.maxTokens",
        (TURN,),
    ),
)
