"""Rules of the trainer's layout, `spec.trainer`: ranks, and how the model is split over them."""

from rljob_api.validation.expression import field
from rljob_api.validation.object_rules.common import CONTEXT, PIPELINE, SIZES, TENSOR
from rljob_api.validation.rule import Rule

RANKS = (field("trainer.nodes") * field("trainer.processesPerNode")).named("nodes x processesPerNode")
RANKS_OF_A_COPY = (TENSOR * PIPELINE * CONTEXT).named("tensor x pipeline x context")
UPDATES = (field("train.miniBatches") * field("train.epochsPerStep")).named("miniBatches x epochsPerStep")

LAYOUT_RULES = (
    Rule(
        SIZES,
        RANKS_OF_A_COPY.divides(RANKS),
        "{0} is not divisible by {1}",
        "make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of it, or lower one of the sizes",
        (RANKS, RANKS_OF_A_COPY),
        lambda spec: f"tensor {TENSOR.of(spec)} x pipeline {PIPELINE.of(spec)} x context {CONTEXT.of(spec)}",
    ),
    Rule(
        f"{SIZES}.virtualPipeline",
        (field(f"{SIZES}.virtualPipeline") > 1).implies(PIPELINE > 1),
        "parts of a stage can only be interleaved between stages, and there is one stage",
        "raise pipeline, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(field("trainer.overlap.gradReduce")),
        "parameters are gathered into the buckets from which gradients are reduced",
        "set spec.trainer.overlap.gradReduce: true, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(UPDATES > 1),
        "parameters are gathered during the forward pass of the next update, and {0} leaves one update in a step",
        "remove it, or raise spec.train.miniBatches",
        (UPDATES,),
    ),
)
