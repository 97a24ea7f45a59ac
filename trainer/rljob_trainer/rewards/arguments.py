"""What reward functions can be called with: values by the names of their parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rljob_trainer.rewards.request import RewardRequest

Value = Callable[[RewardRequest], Any]


def _extra_info(request: RewardRequest) -> Any:
    return request.row().get("extra_info") or {}


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
        "extra_info": _extra_info,
    },
}
"""verl: what its reward managers give a custom function (verl/workers/reward_manager/naive.py)."""
READ_FROM_FILES = {"extra_info", "ground_truth", "row"}


def arguments(request: RewardRequest, known: Mapping[str, Value], names: Sequence[str]) -> dict[str, Any]:
    """The values of these names, which are among the `known` ones. Reads the row's file for READ_FROM_FILES."""
    return {name: known[name](request) for name in names}
