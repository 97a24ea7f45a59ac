"""The kernels with gradients: the value is the kernel's, and the gradient that of the same formula in torch, at the same inputs."""

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

from rljob_trainer.wire.rollout_server import BATCH_INVARIANT

CHUNK = 2048
"""Rows whose log-probabilities are computed at a time: bounds copies of logits in float32."""


def kernels(device: torch.device) -> ModuleType:
    """`cpu` or `gpu`. Imports vLLM.

    vLLM's compiled kernels read the variable once in a process: fused_add_rms_norm sums the squares of a row in another order without it.
    """
    if device.type != "cpu":
        os.environ[BATCH_INVARIANT] = "1"
    return import_module(f"{__package__}.{'cpu' if device.type == 'cpu' else 'gpu'}")


def rotation(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """vLLM's rotary embedding of a model, with sines and cosines of all positions. `config`: transformers' configuration."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    with set_current_vllm_config(VllmConfig()), torch.device(device):
        rope = get_rope(width, config.max_position_embeddings, rope_parameters=config.rope_parameters, dtype=dtype)
        rope.cos_sin_cache = rope.cos_sin_cache.to(device, dtype)
    return rope


def rotated(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, rope: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """By vLLM's kernel, which has this form on every device. query [t, heads, d], key [t, groups, d]. `rope`: see `rotation`."""
    import vllm._custom_ops as ops

    turned = query.flatten(1).clone(), key.flatten(1).clone()
    ops.rotary_embedding(positions, *turned, query.shape[-1], rope.cos_sin_cache, rope.is_neox_style)
    return turned[0].view(query.shape), turned[1].view(key.shape)


class _Exact(torch.autograd.Function):
    """`kernel(*tensors)`, with the gradient of `formula(*tensors)`."""

    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., Any], formula: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        ctx.formula = formula
        ctx.save_for_backward(*tensors)
        return kernel(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_(w) for t, w in zip(ctx.saved_tensors, wanted, strict=True)]
            out = ctx.formula(*inputs)
        slopes = iter(torch.autograd.grad(out, [t for t in inputs if t.requires_grad], gradients))
        return None, None, *(next(slopes) if w else None for w in wanted)


class _Linear(torch.autograd.Function):
    """x [t, in], weight [out, in] -> [t, out]"""

    @staticmethod
    def forward(
        ctx: Any, kernel: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return kernel(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        (slope,) = gradients
        return None, slope @ weight, slope.t() @ x, slope.sum(0) if ctx.biased else None


class _Replaced(torch.autograd.Function):
    """`exact`, with the gradient of `value`."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        return exact

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def linear(of: ModuleType, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., in] -> [..., out]. `of`: the kernels, as everywhere here."""
    rows: torch.Tensor = _Linear.apply(of.linear, x.reshape(-1, x.shape[-1]), weight, bias)
    return rows.view(*x.shape[:-1], -1)


def rms_norm(of: ModuleType, x: torch.Tensor, weight: torch.Tensor, eps: float, of_sum: bool) -> torch.Tensor:
    """x [..., d]"""

    def formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)

    normed: torch.Tensor = _Exact.apply(lambda x, weight: of.rms_norm(x, weight, eps, of_sum), formula, x, weight)
    return normed


def silu_and_mul(of: ModuleType, x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 d], gate and value -> [..., d]"""

    def formula(x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value

    out: torch.Tensor = _Exact.apply(of.silu_and_mul, formula, x)
    return out


def rotate(
    of: ModuleType, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, rope: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [t, heads, d], key [t, groups, d]"""

    def turned(x: torch.Tensor) -> torch.Tensor:
        cos, sin = rope.cos_sin_cache[positions, None].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def formula(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return turned(query), turned(key)

    pair: tuple[torch.Tensor, torch.Tensor] = _Exact.apply(
        lambda query, key: of.rotate(positions, query, key, rope), formula, query, key
    )
    return pair


def attend(
    of: ModuleType, formula: Callable[..., torch.Tensor], starts: tuple[int, ...], scale: float, *qkv: torch.Tensor
) -> torch.Tensor:
    """query [t, heads, d], key and value [t, groups, d] of sequences with these boundaries -> [t, heads * d]. `formula`: the same in torch."""
    out: torch.Tensor = _Exact.apply(lambda q, k, v: of.attend(q, k, v, starts, scale).flatten(1), formula, *qkv)
    return out


def log_probs(
    of: ModuleType, value: torch.Tensor, logits: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> torch.Tensor:
    """`value` [t], the log-probabilities of `tokens` [t], as a server computes them from `logits` [t, vocabulary]."""
    with torch.no_grad():
        pieces = zip(logits.split(CHUNK), tokens.split(CHUNK), strict=True)
        exact = torch.cat([of.log_probs(part, chosen, temperature) for part, chosen in pieces])
    replaced: torch.Tensor = _Replaced.apply(value, exact)
    return replaced
