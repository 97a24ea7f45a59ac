"""Samples of several turns: an agent asks the policy, and what the policy did not write is not learnt from.

An agent's file imports from here what its function works with.
"""

from rljob_trainer.agents.api import Policy, PolicyError, Prompt, Trajectory, Turn
from rljob_trainer.agents.history import History
from rljob_trainer.agents.sandbox import ProgramResult, Sandbox
from rljob_trainer.sandboxes.sandbox import SandboxError

__all__ = [
    "History",
    "Policy",
    "PolicyError",
    "ProgramResult",
    "Prompt",
    "Sandbox",
    "SandboxError",
    "Trajectory",
    "Turn",
]
