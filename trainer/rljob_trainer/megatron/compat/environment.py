"""What torch and megatron find when they are imported: variables, optional packages that they must not find, and a stand-in for one that is absent.

Variables that torch and megatron read, and optional packages that they must not find.

No attention of cuDNN's in torch, which torch 2.13 prefers on Hopper. With a mask, as sparse attention has it, its gradient of the queries is NaN
where keys are 64 more than a multiple of 128 and scores are low (cuDNN 9.20, pytorch/pytorch#196678). Transformer Engine calls cuDNN itself, without
such masks. Can go when torch has a cuDNN without that.

Weight gradients added to their buffer by the matrix product that makes them.

megatron-core offers this (`gradient_accumulation_fusion`) only where an extension of Apex is installed. Two functions are all that it takes
from there (core/tensor_parallel/layers.py:680), and torch since 2.11 can do the same. Can go when megatron-core fuses without Apex
(NVIDIA/Megatron-LM#1885).
"""

import importlib.machinery
import importlib.util
import os
import sys
import types
from functools import partial

import torch

from rljob_trainer.machine import has_compiler
from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _set_variables() -> None:
    # torch asks for GPUs without starting CUDA, which would not survive a fork
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # core/jit.py:26 compiles small functions, which pays on a GPU and takes a C compiler there; on CPU it takes a C++ compiler and seconds
    if not (torch.cuda.is_available() and has_compiler()):
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # else a pool of processes as large as the machine, for a few kernels
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _hide(package: str) -> None:
    """An import of it fails as where it is not installed."""
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]


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


def _lacks_apex() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec(NAME) is None


PATCHES = (
    Patch("environment variables", "torch", VERSIONS["torch"], _set_variables),
    Patch("no attention of cuDNN", "torch", VERSIONS["torch"], partial(torch.backends.cuda.enable_cudnn_sdp, False)),
    # megatron's inference code imports it where vLLM has brought it, and it starts CUDA to see the GPUs, which would not survive a fork.
    # Can go when core/inference imports it on use.
    Patch("no flashinfer", "megatron-core", VERSIONS["megatron-core"], partial(_hide, "flashinfer")),
    # megatron-bridge looks for it on the disk for every parameter of every export, where it is not installed.
    # Can go when `is_modelopt_dynamic_module` remembers that it is absent.
    Patch(
        "no modelopt",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        partial(_hide, "modelopt"),
        replaces={"megatron/bridge/models/conversion/utils.py:is_modelopt_dynamic_module": "59caf313f8535138"},
    ),
    Patch(
        "weight gradients without Apex",
        "megatron-core",
        VERSIONS["megatron-core"],
        _stand_in,
        needed=_lacks_apex,
        replaces={
            "megatron/core/tensor_parallel/layers.py:LinearWithGradAccumulationAndAsyncCommunication.backward": "86a1b2d7460806cf"
        },
    ),
)
