"""The numbers with which two models of the same shapes may compute differently."""

from types import SimpleNamespace
from typing import Any

import pytest

from rljob_trainer.megatron.constants import constants, first_difference

POLICY: dict[str, Any] = {
    "num_layers": 2,
    "rotary_base": 1e6,
    "window_size": None,
    "moe_layer_freq": [0, 1],
    "activation_func": len,
    "seq_length": 32,
    "mtp_num_layers": 1,
    "perform_initialization": False,
    "grad_sync_func": None,
    "init_method": len,
    "_pg_collection": None,
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rotary_base": 10000}, ("rotary_base", 1e6, 10000)),
        ({"window_size": [5, 0]}, ("window_size", None, [5, 0])),
        ({"moe_layer_freq": [1, 1]}, ("moe_layer_freq", [0, 1], [1, 1])),
        ({"activation_func": abs}, ("activation_func", "len", "abs")),
        ({"rotary_base": 1, "num_layers": 3}, ("num_layers", 2, 3)),
        ({"rotary_base": 1000000}, None),
        ({"seq_length": 64, "mtp_num_layers": None, "_pg_collection": 1, "perform_initialization": True}, None),
        ({"grad_sync_func": abs, "init_method": abs}, None),
        ({"grad_sync_func": [abs], "more": 1}, None),
    ],
)
def test_what_changes_log_probabilities_is_found(changes: dict[str, Any], found: object) -> None:
    ours, theirs = (constants(SimpleNamespace(**settings)) for settings in (POLICY, POLICY | changes))
    assert first_difference(ours, theirs) == found
