"""Without Transformer Engine, megatron-bridge takes megatron-core's stand-ins for its layers and asks whether a matrix is an instance of one, which
raises (peft/utils.py, get_adapter_attributes_from_linear). Can go when it asks megatron-core's own HAVE_TE.
"""

import importlib
from typing import Any

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.torch_layers import has_transformer_engine
from rljob_trainer.patches import Patch


def _say_that_it_is_absent() -> None:
    utils: Any = importlib.import_module("megatron.bridge.peft.utils")
    utils.HAVE_TE = False


PATCHES = (
    Patch(
        "adapters without Transformer Engine",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _say_that_it_is_absent,
        needed=lambda: not has_transformer_engine(),
        replaces={"megatron/bridge/peft/utils.py:get_adapter_attributes_from_linear": "21a617b795af0cac"},
    ),
)
