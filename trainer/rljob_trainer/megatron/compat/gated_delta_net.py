"""Gated delta nets (Qwen3-Next, Qwen3.5) without flash-linear-attention, whose kernels need a GPU: megatron-core refuses to make the layer, and its
own implementation in torch does not take packed sequences (core/ssm/gated_delta_net/common.py, torch_chunk_gated_delta_rule). Can go when that does.
"""

import importlib
from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

NAMES = ("causal_conv1d", "chunk_gated_delta_rule", "l2norm")
_FOLDER = "megatron/core/ssm/gated_delta_net"


def _has_kernels() -> bool:
    common: Any = importlib.import_module("megatron.core.ssm.gated_delta_net.common")
    return bool(common.HAVE_FLA) and torch.cuda.is_available()


def _compute_in_torch() -> None:
    from rljob_trainer.megatron.plain_torch import gated_delta_net

    for name in ("common", "gdn"):
        module: Any = importlib.import_module(f"megatron.core.ssm.gated_delta_net.{name}")
        for function in NAMES:
            if hasattr(module, function):
                setattr(module, function, getattr(gated_delta_net, function))
        module.HAVE_FLA = True


PATCHES = (
    Patch(
        "gated delta nets in torch",
        "megatron-core",
        VERSIONS["megatron-core"],
        _compute_in_torch,
        needed=lambda: not _has_kernels(),
        replaces={
            f"{_FOLDER}/common.py:_GDNBase._prepare_input_for_gated_delta_rule": "ce63c3de0fbe5652",
            f"{_FOLDER}/gdn.py:GatedDeltaNet.forward": "e4cd9a2d0a9e061a",
        },
    ),
)
