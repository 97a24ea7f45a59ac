"""What reward functions can be called with, by the names of their parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_trainer.rewards.request import RewardRequest

Value = Callable[[RewardRequest], Any]

VALUES: Mapping[str, Value] = {
    "prompt": lambda r: r.prompt,
    "response": lambda r: r.response,
    "answer": lambda r: r.answer,
    "data_source": lambda r: r.data_source,
    "extra_info": lambda r: r.row().get("extra_info") or {},
    "row": lambda r: r.row(),
    "tokens": lambda r: list(r.tokens[r.prompt_length :]),
    "truncated": lambda r: r.truncated,
}
READ_FROM_FILES = {"extra_info", "row"}


def arguments(request: RewardRequest, names: Sequence[str]) -> dict[str, Any]:
    """The values of these names. Reads the row's file for READ_FROM_FILES."""
    return {name: VALUES[name](request) for name in names}
