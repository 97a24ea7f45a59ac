"""Rules of what is trained, held out and kept: `spec.data`, `train`, `evaluation` and `checkpoint`."""

from rljob_api.spec.job import PAIRED
from rljob_api.validation.expression import either, field, present, size
from rljob_api.validation.object_rules.common import AGENT, CONTEXT, RL, TENSOR, TURN
from rljob_api.validation.rule import Rule

PAIRS = field("task").is_in(PAIRED)
LONGEST = (field("data.maxPromptTokens") + either(AGENT, field("rollout.agent.maxTokens"), TURN)).named(
    "maxPromptTokens + maxTokens"
)
ALIGNMENT = TENSOR * either(CONTEXT > 1, CONTEXT * 2, 1)
"""`Layout.alignment` as an expression."""
ALIGNED = ((LONGEST + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT).named("rounded up for tensor and context parallelism")
LONGEST_EXAMPLE = ((field("data.maxTokens") + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT * either(PAIRS, 2, 1)).named(
    "data.maxTokens, rounded up for tensor and context parallelism, twice for a pair"
)

IMAGE_RULES = (
    Rule(
        "data.imageKey",
        present("data.imageKey").implies(~AGENT),
        "samples of an agent have no images",
        "remove spec.rollout.agent, or the images",
    ),
)

BATCH_RULES = (
    Rule(
        "checkpoint.keepExports",
        (field("checkpoint.exportEverySteps") > 0) | field("checkpoint.keepExports").equals(3),
        "only the exports of spec.checkpoint.exportEverySteps are counted, and there are none",
        "remove it, or set spec.checkpoint.exportEverySteps",
    ),
    Rule(
        "train.miniBatches",
        RL.implies(field("train.miniBatches").divides(field("train.promptsPerStep"))),
        "the samples of a prompt stay in one mini-batch, and {0} is not divisible by it",
        "choose a divisor of spec.train.promptsPerStep",
        (field("train.promptsPerStep"),),
    ),
    Rule(
        "train.miniBatches",
        RL | field("train.miniBatches").divides(field("train.samplesPerStep")),
        "all mini-batches are of one size, and {0} is not divisible by it",
        "choose a divisor of spec.train.samplesPerStep",
        (field("train.samplesPerStep"),),
    ),
    Rule(
        "train.tokensPerMicroBatch",
        RL.implies(field("train.tokensPerMicroBatch") >= ALIGNED),
        "the longest sample must fit into a micro-batch: {0}, {1}",
        "raise it, or lower spec.data.maxPromptTokens or maxTokens of spec.rollout.agent or else spec.rollout.sampling",
        (LONGEST, ALIGNED),
    ),
    Rule(
        "train.tokensPerMicroBatch",
        RL | (field("train.tokensPerMicroBatch") >= LONGEST_EXAMPLE),
        "the longest sample must fit into a micro-batch: {0}",
        "raise it, or lower spec.data.maxTokens",
        (LONGEST_EXAMPLE,),
    ),
    Rule(
        "data.weights",
        size("data.weights").equals(0) | size("data.weights").equals(size("data.train")),
        "there is one number for each file of spec.data.train",
        "give as many numbers as files, or remove it",
        value=lambda spec: f"{len(spec.data.weights)} numbers, {len(spec.data.train)} files",
    ),
    Rule(
        "evaluation",
        (field("evaluation.everySteps").equals(0) & ~field("evaluation.only"))
        | (size("data.validation") > 0)
        | (size("evaluation.sets") > 0),
        "there is no held-out data",
        "name files in spec.data.validation, for task rl also in spec.evaluation.sets, or remove everySteps and only",
        value=lambda spec: "only" if spec.evaluation.only else f"everySteps: {spec.evaluation.every_steps}",
    ),
)
