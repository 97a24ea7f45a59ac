"""Rules of `spec.algorithm` and `spec.critic`: advantages, losses and distillation."""

from rljob_api.validation.expression import count, field, present, size
from rljob_api.validation.object_rules.common import ADVANTAGE, TEACHER
from rljob_api.validation.rule import Rule

GROUP_ADVANTAGES = ("grpo", "rloo", "reinforce++-baseline", "opo")
"""Advantages that compare the samples of one prompt."""
VALUED = ("gae", "python")
"""Advantages that read the values of a critic."""

TOP_K, TAUGHT_BY_REFERENCE = present("algorithm.distillation.topK"), field("algorithm.distillation.reference")
ONLY_TAUGHT = TEACHER & size("rewards").equals(0)
"""The job has a teacher and no rewards, so that samples are not compared."""

ALGORITHM_RULES = (
    Rule(
        "train.samplesPerPrompt",
        ADVANTAGE.is_in(GROUP_ADVANTAGES).implies((field("train.samplesPerPrompt") > 1) | ONLY_TAUGHT),
        "{0} compares the samples of one prompt",
        "set at least 2",
        (ADVANTAGE,),
    ),
    Rule(
        "algorithm.advantage",
        ADVANTAGE.equals("gae").implies(present("critic")),
        "gae needs the values of a critic",
        "add spec.critic, {} for the defaults",
    ),
    Rule(
        "critic",
        present("critic").implies(ADVANTAGE.is_in(VALUED)),
        "{0} does not read values",
        "remove it, or set spec.algorithm.advantage: gae",
        (ADVANTAGE,),
        lambda _: "set",
    ),
    *(
        rule
        for name in ("advantage", "loss")
        for rule in (
            Rule(
                f"algorithm.{name}",
                field(f"algorithm.{name}").equals("python").implies(present(f"algorithm.{name}Function")),
                "python needs the function that it calls",
                f"add spec.algorithm.{name}Function with path and function",
            ),
            Rule(
                f"algorithm.{name}Function",
                present(f"algorithm.{name}Function").implies(field(f"algorithm.{name}").equals("python")),
                "{0} does not call it",
                f"remove it, or set spec.algorithm.{name}: python",
                (field(f"algorithm.{name}"),),
                lambda _: "set",
            ),
        )
    ),
    Rule(
        "algorithm.aggregation",
        field("algorithm.loss").equals("gspo").implies(field("algorithm.aggregation").equals("sequenceMeanTokenMean")),
        "gspo weighs whole responses",
        "set sequenceMeanTokenMean",
    ),
)

DISTILLATION_RULES = (
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
