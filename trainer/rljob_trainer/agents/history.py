"""What an agent has of a trajectory that it continues: `async def rollout(prompt, policy, row, history) -> Trajectory | None`.

A function with this parameter says of itself that it can: it is called again when its process was lost, and the turns that the policy has answered
are not asked for again. Imported by the function's process, so nothing large.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_trainer.agents.api import LastTurn, Turn

HISTORY = "history"
"""The parameter."""
PARAMETERS = ("prompt", "policy", "row")
SIGNATURE = f"async def rollout({', '.join(PARAMETERS)})"


@dataclass(frozen=True, slots=True)
class History:
    """Empty when a trajectory begins."""

    turns: list[Turn] = field(default_factory=list)
    """Those that the policy has answered, in the order in which they were asked for. Nobody may have read the last one yet."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation that the last turn ends, as chat completions have it; empty where it continues token ids."""

    @property
    def last(self) -> Turn | None:
        """The turn behind which the agent continues."""
        return self.turns[-1] if self.turns else None


def read(said: Mapping[str, Any]) -> tuple[History, LastTurn]:
    """What the driver says (session.py), and where the policy continues."""
    turns, sequence = list[Turn](), list[int]()
    for given in said["turns"]:
        written = {key: value for key, value in given.items() if key not in ("context", "continues")}
        if not given["continues"]:
            sequence = []
        sequence += given["context"]
        turns.append(Turn(sequence, **written, context_length=len(sequence)))
        sequence += given["tokens"]
    messages = [dict(message) for message in said["messages"]]  # the agent may add to them
    return History(turns, messages), LastTurn(said["number"], sequence, said["messages"])


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """What the function of an agent is called with. Raises TypeError for what is none."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"has to be async: {SIGNATURE}")
    signature = inspect.signature(function)
    if HISTORY not in signature.parameters:
        signature.bind(*PARAMETERS)
        return PARAMETERS
    try:
        signature.bind(*PARAMETERS, **{HISTORY: None})
    except TypeError as error:
        continued = f"{SIGNATURE.removesuffix(')')}, {HISTORY})"
        raise TypeError(
            f"has {HISTORY!r} among its parameters, and cannot be called as {continued}: {error}"
        ) from error
    return (*PARAMETERS, HISTORY)
