"""Environments of Python libraries, in the agent's processes: a library is imported when the spec names it, and by no other job.

A module for each library has `load(environment, arguments)`, which makes a Library. What the library raises is the sample's failure, in a message
that names the environment; calls that may block run in threads of their own (threads.py).
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from rljob_trainer.agents.api import Policy, Prompt, Trajectory

MODULES = {"verifiers": "verifiers", "skyrlGym": "skyrl_gym", "reasoningGym": "reasoning_gym"}
"""By the name of the field below spec.rollout.agent."""
PACKAGES = {"verifiers": "verifiers", "skyrlGym": "skyrl-gym", "reasoningGym": "reasoning-gym"}
"""What has to be installed."""


class Library(Protocol):
    """One environment."""

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory | None: ...


def load(kind: str, environment: str, arguments: Mapping[str, Any]) -> Library:
    """Raises ImportError when the library is not installed, and what it raises for this environment and these arguments."""
    module = import_module(f"{__name__}.{MODULES[kind]}")
    return cast(Library, module.load(environment, dict(arguments)))
