"""Weight gradients added to their buffer by the matrix product that makes them.

megatron-core offers this (`gradient_accumulation_fusion`) only where an extension of Apex is installed. Two functions are all that it takes
from there (core/tensor_parallel/layers.py:680), and torch since 2.11 can do the same. Can go when megatron-core fuses without Apex
(NVIDIA/Megatron-LM#1885).
"""

import importlib.machinery
import importlib.util
import sys
import types

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

NAME = "fused_weight_gradient_mlp_cuda"


def _stand_in() -> None:
    """For the extension, before megatron is imported."""
    module = types.ModuleType(NAME)
    module.__spec__ = importlib.machinery.ModuleSpec(NAME, None)
    module.__dict__.update(wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)
    sys.modules[NAME] = module


def accumulate(inputs: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor) -> None:
    """total [out, in] += gradient [t, out]^T inputs [t, in], where `total` may be of a wider type."""
    if total.dtype == inputs.dtype:
        total.addmm_(gradient.t(), inputs)
    else:
        torch.addmm(total, gradient.t(), inputs, out_dtype=total.dtype, out=total)


PATCHES = (
    Patch(
        "weight gradients without Apex",
        "megatron-core",
        VERSIONS["megatron-core"],
        _stand_in,
        needed=lambda: torch.cuda.is_available() and importlib.util.find_spec(NAME) is None,
        replaces={
            "megatron/core/tensor_parallel/layers.py:LinearWithGradAccumulationAndAsyncCommunication.backward": "86a1b2d7460806cf"
        },
    ),
)
