"""Products of experts on Hopper in one kernel for all of them, also the gradients of their weights.

Transformer Engine multiplies one expert after the other, and cuBLASLt chooses a way for each number of tokens that it has not met. That takes 0.13 to
0.15 ms of the host's time, so that GPUs wait for the host in more than half of a step (docs/evidence/gpus.md, "Experts"). With a variable of its own
it computes forward products and gradients of inputs in one kernel of CUTLASS, but not gradients of weights, whose lengths differ. torch's grouped
product can. It rounds those of a micro-batch to bfloat16, before they are added to their buffer in float32. Can go when torch brings a cuBLAS (13.4)
with which Transformer Engine does it itself.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.functional import grouped_mm

from rljob_api.sizing.stage import PRODUCTS
from rljob_trainer.megatron.compat.core_layers import has_transformer_engine
from rljob_trainer.patches import Patch

HOPPER = (9, 0)
VARIABLE = "NVTE_USE_CUTLASS_GROUPED_GEMM"
ALIGNED = 8
"""A row holds a multiple of so many numbers of two bytes, or the kernel refuses it."""


def add_gradients(
    inputs: torch.Tensor, gradients: torch.Tensor, rows: Sequence[int], totals: Sequence[torch.Tensor], add: bool
) -> None:
    """totals[e] [out, in] += (`add`) or = gradients[e] [t_e, out]^T inputs[e] [t_e, in], for all experts e.

    `inputs` [t, in] and `gradients` [t, out] hold the experts' rows one after the other, `rows` of each, which may be none.
    """
    put = torch._foreach_add_ if add else torch._foreach_copy_
    ends = [0, *itertools.accumulate(rows)]
    count = max(1, PRODUCTS // (inputs.shape[1] * gradients.shape[1] * inputs.element_size()))
    for first in range(0, len(rows), count):
        last = min(first + count, len(rows))
        own, buffers = slice(ends[first], ends[last]), list(totals[first:last])
        if own.start == own.stop:
            products = [torch.zeros_like(buffer) for buffer in buffers]
        else:
            offsets = _offsets([end - own.start for end in ends[first + 1 : last + 1]], inputs.device)
            products = list(grouped_mm(gradients[own].t(), inputs[own], offs=offsets).unbind())
        put(buffers, products)


def _offsets(ends: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where each expert's rows end. From pinned memory, since another copy would wait for the GPU."""
    pinned = torch.tensor(ends, dtype=torch.int32, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensor [t, width] that these were split from; None where they do not lie one after the other."""
    first, last = parts[0], parts[-1]
    width, rows = first.shape[1], sum(len(part) for part in parts)
    end = first.storage_offset() + rows * width
    same = first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    if not (same and last.stride() == (width, 1) and last.storage_offset() + last.numel() == end):
        return None
    return first.as_strided((rows, width), (width, 1))


def _on_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def at_once(one_by_one: Callable[..., Any], fits: Callable[[torch.device], bool] = _on_hopper) -> Callable[..., Any]:
    """Transformer Engine's general_grouped_gemm, `one_by_one`, where gradients of weights in bfloat16 are made at once on devices that `fits`."""

    def products(inputs: Any, gradients: Any, totals: Any, *given: Any, **options: Any) -> Any:
        all_inputs = all_gradients = None
        if options.get("layout") == "NT" and not options.get("use_bias") and _plain([*inputs, *gradients], fits):
            all_inputs, all_gradients = joined(inputs), joined(gradients)
        if all_inputs is None or all_gradients is None:
            with _by_cublas() if _narrow(inputs[0], gradients[0], options.get("layout", "TN")) else nullcontext():
                return one_by_one(inputs, gradients, totals, *given, **options)
        add_gradients(all_inputs, all_gradients, options["m_splits"], totals, options["accumulate"])
        return totals, [torch.Tensor()] * len(totals), []

    return products


def _plain(parts: Sequence[Any], fits: Callable[[torch.device], bool]) -> bool:
    """Not so are those in float8, which have a type of their own, and those of narrow adapters."""
    kinds = all(type(p) is torch.Tensor and p.dtype == torch.bfloat16 and not p.shape[1] % ALIGNED for p in parts)
    return kinds and fits(parts[0].device)


def _narrow(first: Any, second: Any, layout: str) -> bool:
    """Whether a matrix that is read or written has rows that the kernels refuse, as adapters of a low rank have. float8 has other kernels."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    rows = [
        first.shape[1],
        second.shape[1],
        first.shape[0] if layout != "NT" else 0,
    ]  # of a weight: what a product writes
    return any(length % ALIGNED for length in rows)


@contextmanager
def _by_cublas() -> Iterator[None]:
    """CUTLASS ends the process where it refuses a product, and does not leave it to cuBLAS."""
    wanted, os.environ[VARIABLE] = os.environ.get(VARIABLE, "0"), "0"
    try:
        yield
    finally:
        os.environ[VARIABLE] = wanted


def _multiply_at_once() -> None:
    from transformer_engine.pytorch.module import grouped_linear

    os.environ.setdefault(VARIABLE, "1")
    grouped_linear.general_grouped_gemm = at_once(grouped_linear.general_grouped_gemm)


PATCHES = (
    Patch(
        "products of experts",
        "transformer-engine-torch",
        ("2.20.2",),
        _multiply_at_once,
        needed=has_transformer_engine,
        replaces={
            "transformer_engine/pytorch/cpp_extensions/gemm.py:general_grouped_gemm": "0788099e05a96b02",
            "transformer_engine/pytorch/module/grouped_linear.py:_GroupedLinear.backward": "a05a92336fa229ff",
        },
    ),
)
