"""Whether the stand-in for flash-attn computes what torch does, forwards and backwards, and how long a layer's attention takes. Seconds on a GPU.

python -m benchmarks.verl.check_attention
"""

import sys
import time

import torch
from flash_attn import flash_attn_varlen_func
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from benchmarks.shapes import MODELS

SHAPE = MODELS["7b"]
HEADS, KEYS = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
WIDTH = SHAPE["hidden_size"] // HEADS
LARGEST = 0.02
"""Relative error, of bfloat16 against float32."""


def main() -> int:
    if not torch.cuda.is_available():
        print("check_attention: no GPU, nothing checked")
        return 0
    torch.manual_seed(0)
    errors = attention_errors((1280, 700, 1280)) | loss_errors(512)
    print("check_attention: relative errors:", {name: round(error, 5) for name, error in errors.items()})
    print(f"check_attention: a layer's attention of 16,640 tokens, both ways: {1e3 * seconds((1280,) * 13):.2f} ms")
    return int(max(errors.values()) > LARGEST)


def packed(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of sequences of these lengths, and the bounds of the sequences."""
    sizes = (HEADS, KEYS, KEYS)
    q, k, v = (
        torch.randn(sum(lengths), n, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in sizes
    )
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    return q, k, v, bounds


def attention_errors(lengths: tuple[int, ...]) -> dict[str, float]:
    q, k, v, bounds = packed(lengths)
    inputs, gradient = (q, k, v), torch.randn_like(q)
    out = flash_attn_varlen_func(q, k, v, bounds, bounds, max(lengths), max(lengths), causal=True)
    sequences = zip(*(x.float().split(lengths) for x in inputs), strict=True)
    wanted = torch.cat([dense(*sequence) for sequence in sequences])
    found = (out, *torch.autograd.grad(out, inputs, gradient))
    right = (wanted, *torch.autograd.grad(wanted, inputs, gradient.float()))
    return {name: error(*pair) for name, *pair in zip(("out", "dq", "dk", "dv"), found, right, strict=True)}


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of one sequence."""
    q, k, v = (x[None].transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)[0]


def loss_errors(tokens: int) -> dict[str, float]:
    vocabulary = SHAPE["vocab_size"]
    logits = torch.randn(tokens, vocabulary, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocabulary, (tokens,), device="cuda")
    wanted = cross_entropy(logits.float(), labels, reduction="none")
    (right,) = torch.autograd.grad(wanted.sum(), logits)
    loss = cross_entropy_loss(logits, labels)[0]
    (found,) = torch.autograd.grad(loss.sum(), logits)
    return {"cross entropy": error(loss, wanted), "its gradient": error(found, right)}


def error(found: Tensor, right: Tensor) -> float:
    return float((found.float() - right.float()).norm() / right.float().norm())


def seconds(lengths: tuple[int, ...]) -> float:
    """Of the last of four."""
    q, k, v, bounds = packed(lengths)
    took = 0.0
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = flash_attn_varlen_func(q, k, v, bounds, bounds, max(lengths), max(lengths), causal=True)
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    return took


if __name__ == "__main__":
    sys.exit(main())
