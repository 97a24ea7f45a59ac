"""The agent of the example: the policy may call add(a,b), and reads the sum behind its call."""

import re

from rljob_trainer.agents import Policy, Prompt, Trajectory

CALL = re.compile(r"add\((\d+),(\d+)\)$")


async def rollout(prompt: Prompt, policy: Policy, row: dict) -> Trajectory:
    """Turn after turn, until one ends without a call: that is the answer."""
    context = prompt.tokens
    while turn := await policy.generate(context, stop=[")"]):
        context = turn.whole
        call = CALL.search(turn.text)
        if not call:
            break
        context += await policy.encode(f"{int(call[1]) + int(call[2])};")
    return Trajectory(context)
