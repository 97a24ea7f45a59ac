"""What to do about a reward function that cannot be called: its signature says for which system it was written."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.spec.model import PythonReward
from rljob_trainer.rewards.request import INTERFACES

VERLS, VERLS_NAME = "solution_str", "compute_score"
"""A parameter that only functions for verl have, and what these are called where nothing else is said."""
TRLS = ("completions", "completion_ids", "prompts")
"""Parameters that only functions for TRL have: lists, over the samples of a batch."""
ONE_RESPONSE = (
    "it has TRL's parameters, which are lists: RLJob calls a function once for each response, by the names prompt, response, answer and row, "
    "and wants one number (docs/data-and-rewards.md#a-function-that-was-written-for-trl)"
)


def fix_of(spec: PythonReward, error: str, details: Mapping[str, Any]) -> str:
    """`error`, `details`: what the worker said of it."""
    if details.get("defined"):
        return _named(spec, details["defined"])
    if "parameter" in details:
        return _called(spec, details["parameter"], details["parameters"])
    if "attempted relative import with no known parent package" in error:
        return "import files next to it by their names, without a dot: its directory is in sys.path, and it is part of no package"
    return "fix the file; it is imported by itself, with the image's packages"


def _named(spec: PythonReward, defined: Mapping[str, Sequence[str]]) -> str:
    """Of a file that has other functions than the one that is asked for."""
    verls = [name for name, parameters in defined.items() if VERLS in parameters]
    if verls and spec.interface != "verl":
        name = VERLS_NAME if VERLS_NAME in verls else verls[0]
        return f"{name} has verl's parameters: set python.interface: verl" + _function(name, VERLS_NAME)
    if spec.interface == "verl" and not verls and "reward" in defined:
        return "remove python.interface: verl: no function of the file has verl's parameters"
    if len(defined) > 1:
        return "set python.function to one of them"
    ((name, parameters),) = defined.items()
    choice = f"set python.function: {name}"
    return choice if set(TRLS).isdisjoint(parameters) else f"{choice}; {ONE_RESPONSE}"


def _called(spec: PythonReward, lacking: str, parameters: Sequence[str]) -> str:
    """Of a function whose parameter `lacking` would have no value."""
    if lacking in TRLS:
        return ONE_RESPONSE
    if spec.interface != "verl" and VERLS in parameters:
        return "it has verl's parameters: set python.interface: verl next to its path"
    if spec.interface == "verl" and VERLS not in parameters and lacking in INTERFACES["rljob"]:
        return "it has RLJob's own parameters: remove python.interface: verl" + _function(spec.function_name, "reward")
    return "rename the parameter, give it a default, or a value in python.arguments; each call is about one response, and returns its reward"


def _function(name: str, default: str) -> str:
    return "" if name == default else f", and set python.function: {name}"
