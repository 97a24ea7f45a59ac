"""Rules of adapters, `spec.model.lora`."""

from rljob_api.spec.model import LORA_RANKS
from rljob_api.validation.expression import field, present
from rljob_api.validation.object_rules.common import COLOCATED, RL, TENSOR
from rljob_api.validation.rule import Rule

LORA = present("model.lora")
ALONE = LORA & field("model.lora.sync").equals("adapters")
"""Rollouts receive adapters alone, without the model."""

LORA_RULES = (
    Rule(
        "model.lora.rank",
        LORA.implies(TENSOR.divides(field("model.lora.rank"))),
        "the columns of an adapter are shared by the tensor-parallel ranks, and {0} does not divide it",
        "choose a multiple of it",
        (TENSOR,),
    ),
    Rule(
        "model.megatronCheckpoint",
        LORA.implies(~present("model.megatronCheckpoint")),
        "adapters belong to the weights in spec.model.path, by whose name others find them",
        "export that checkpoint as a Hugging Face directory and name it in spec.model.path, or remove spec.model.lora",
    ),
    Rule(
        "reference.offload",
        LORA.implies(present("reference.path") | field("reference.offload")),
        "the reference is the policy without its adapters: there is no second copy that could stay on the device",
        "remove it, or name another model in spec.reference.path",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(RL),
        "only task rl has rollouts that get the policy",
        "remove it, or set spec.task: rl",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(~COLOCATED),
        "colocated servers drop their weights while the policy is trained, and get whole models only",
        "set merged, or spec.rollout.placement: separate",
    ),
    Rule(
        "model.lora.rank",
        ALONE.implies(field("model.lora.rank") <= LORA_RANKS[-1]),
        f"vLLM has room for adapters of rank {LORA_RANKS[-1]} or less",
        "lower it, or set spec.model.lora.sync: merged",
    ),
)
