"""Pods of their own for agents and reward functions: how many processes of theirs the driver has a connection for."""

from rljob_api.rules.engine import AGENT, Check, Rule, field, present
from rljob_api.spec.common import MOST_PODS

MOST_CONNECTIONS = 8 * MOST_PODS
"""Of worker processes to the driver: those of as many pods as a job may have, with as many processes as they have by default at most."""


def _rule(section: str = "", items: str = "") -> Rule:
    """Of a section with `workers`, which is there."""
    replicas, processes = field(f"{section}workers.replicas"), field(f"{section}workers.processes")
    given = present(f"{section}workers.processes")
    few = present(f"{section}workers").implies(given.implies(replicas * processes <= MOST_CONNECTIONS))
    return Rule(
        f"{section}workers.processes",
        few if items else AGENT.implies(few),
        f"the driver has a connection for each process, and at most {MOST_CONNECTIONS}, with {{0}}",
        "lower one of them",
        (replicas,),
        items=items,
    )


RULES: tuple[Check, ...] = (_rule("rollout.agent."), _rule(items="rewards"))
