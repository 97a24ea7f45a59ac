"""What the processes of a reward run, as their command line says it, and what a call gives them. Imports nothing large: pods of their own start these
processes, too."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards import builtin
from rljob_trainer.rewards.request import RewardRequest

MODULE = "rljob_trainer.rewards.worker"
MATHEMATICS = PythonReward(path=str(Path(builtin.__file__).with_name("mathematics.py")))
Value = Callable[[RewardRequest], Any]


def python_of(reward: RewardSpec) -> PythonReward | None:
    """The function that processes of ours call for an entry of spec.rewards; None: they have nothing to do with it."""
    return MATHEMATICS if reward.rule == "math" else reward.python


def command(spec: PythonReward, seconds: float) -> tuple[str, str, str, str]:
    """Arguments of worker.py. `seconds`: that a call may take."""
    return spec.path, spec.function_name, json.dumps([*known_values(spec)]), str(seconds)


def _extra_info(request: RewardRequest) -> Any:
    return request.row().get("extra_info") or {}


def _verls_extra_info(request: RewardRequest) -> Any:
    """With what verl's reward managers add to it, for a job without turns and rewards of its rollouts."""
    info = _extra_info(request)
    return {"num_turns": None, "rollout_reward_scores": {}} | info if isinstance(info, dict) else info


INTERFACES: Mapping[Literal["rljob", "verl"], Mapping[str, Value]] = {
    "rljob": {
        "prompt": lambda r: r.prompt,
        "response": lambda r: r.response,
        "answer": lambda r: r.answer,
        "data_source": lambda r: r.data_source,
        "extra_info": _extra_info,
        "row": lambda r: r.row(),
        "tokens": lambda r: list(r.tokens[r.prompt_length :]),
        "truncated": lambda r: r.truncated,
    },
    "verl": {
        "data_source": lambda r: r.data_source,
        "solution_str": lambda r: r.response,
        "ground_truth": lambda r: r.answer_value(),
        "extra_info": _verls_extra_info,
    },
}
"""verl: what its reward managers give a custom function (verl/workers/reward_manager/naive.py)."""
READ_FROM_FILES = {"extra_info", "ground_truth", "row"}


def known_values(spec: PythonReward) -> dict[str, Value]:
    """Those of the interface, and the spec's own."""
    return {name: _constant(value) for name, value in spec.arguments.items()} | dict(INTERFACES[spec.interface])


def require_arguments(field: str, spec: PythonReward, takes: Sequence[str]) -> None:
    """Raises ConfigurationError for an argument at `field` of the spec that the function does not take, or that would hide a value of the call."""
    for name, value in spec.arguments.items():
        if name in INTERFACES[spec.interface]:
            rule, fix = "every call has a value of its own of that name", "choose another name"
        elif name not in takes:
            rule = f"{spec.function_name}() in {spec.path} takes no argument of that name"
            fix = "remove it, or add the parameter to the function"
        else:
            continue
        raise ConfigurationError(f"{field}.{name}", str(value)[:200], rule, fix)


def _constant(value: Any) -> Value:
    return lambda request: value


def arguments(request: RewardRequest, known: Mapping[str, Value], names: Sequence[str]) -> dict[str, Any]:
    """The values of these names, which are among the `known` ones. Reads the row's file for READ_FROM_FILES."""
    return {name: known[name](request) for name in names}
