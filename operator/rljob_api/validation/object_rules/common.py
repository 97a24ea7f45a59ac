"""Expressions that several of the rules are made of."""

from rljob_api.validation.expression import field, present

SIZES = "trainer.parallelism"
TENSOR, PIPELINE, CONTEXT = (field(f"{SIZES}.{size}") for size in ("tensor", "pipeline", "context"))

RL, ADVANTAGE = field("task").equals("rl"), field("algorithm.advantage")
TEACHER = present("algorithm.distillation")
AGENT, TURN = present("rollout.agent"), field("rollout.sampling.maxTokens")
COLOCATED = field("rollout.placement").equals("colocated")
