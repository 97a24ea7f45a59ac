"""Environments: who claims their sandboxes, and by which names."""

from collections.abc import Iterator

from rljob_api.rules.engine import AGENT, RL, Check, Rule, Violation, field, present, repeated, size
from rljob_api.spec import RLJobSpec

NONE = size("environments").equals(0)

OBJECT_RULES = (
    Rule(
        "environments",
        NONE | ~RL | (AGENT & present("rollout.agent.python")),
        "only the function of spec.rollout.agent.python claims sandboxes, so that these would have nothing to do",
        "remove them, or set spec.rollout.agent.python",
        value="set",
    ),
    Rule(
        "environments",
        NONE | ~present("train.batches.replay"),
        "recorded batches are replayed as they are, so that sandboxes would have nothing to do",
        "remove them, or spec.train.batches.replay",
        value="set",
    ),
    Rule(
        "environments",
        NONE | ~field("scheduling.backend").equals("kueue"),
        "kueue admits a group of pods once, and each sandbox is another pod after every claim",
        "remove them, or set another spec.scheduling.backend",
        value="set",
    ),
)


def name_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Agents claim sandboxes by the name of their environment."""
    named = [pool.name for pool in spec.environments]
    yield from repeated("spec.environments[{}].name", named, "every environment has a name of its own")


RULES: tuple[Check, ...] = (*OBJECT_RULES, name_violations)
