"""megatron-bridge copies the model's configuration, without what pickle refuses, for every layer of every export, and also where there is no other
stage to send it to (models/conversion/param_mapping.py:1759): most of an export's time.

Can go when broadcasts of the configuration are cached for all mappings (NVIDIA-NeMo/Megatron-Bridge#5367 does it for two, #5453 for all).
"""

import importlib
from typing import Any

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _clean_configurations_once() -> None:
    param_mapping: Any = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    clean, known = param_mapping.remove_non_pickleables, dict[tuple[int, int], Any]()

    def clean_once(configuration: Any, max_depth: int) -> Any:
        key = id(configuration), max_depth
        if key not in known:
            known[key] = configuration, clean(configuration, max_depth)  # held, so that its id stays its own
        return known[key][1]

    param_mapping.remove_non_pickleables = clean_once


PATCHES = (
    Patch(
        "configurations are cleaned once",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _clean_configurations_once,
        replaces={"megatron/bridge/models/conversion/utils.py:remove_non_pickleables": "5dc1bb70fb0edd56"},
    ),
)
