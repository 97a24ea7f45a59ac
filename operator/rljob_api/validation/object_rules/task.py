"""Rules of `spec.task`: what the job learns from, and how long."""

from rljob_api.validation.expression import count, field, present, size
from rljob_api.validation.object_rules.common import AGENT, RL, TEACHER
from rljob_api.validation.rule import Rule

TASK_RULES = (
    Rule(
        "rewards",
        RL.implies((size("rewards") > 0) | AGENT | TEACHER),
        "without a reward or a teacher nothing tells good responses from bad ones",
        "name at least one, for example [{rule: exactMatch}], or set spec.algorithm.distillation, or another spec.task",
        value=lambda _: "[]",
    ),
    Rule(
        "rewards",
        RL | size("rewards").equals(0),
        "{0} learns from its data alone and generates nothing that could be rewarded",
        "remove them, or set spec.task: rl",
        (field("task"),),
        lambda _: "set",
    ),
    Rule(
        "train.steps",
        count((present("train.steps"), present("train.epochs"))).equals(1),
        "the length of the job is given by exactly one of steps and epochs",
        "set spec.train.steps or spec.train.epochs, and remove the other",
        value=lambda spec: "none" if spec.train.steps is None else "both",
    ),
)
