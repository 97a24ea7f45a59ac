"""A router's bias, where Transformer Engine multiplies."""

import pytest
import torch

TOKENS, WIDTH, EXPERTS = 7, 16, 4


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    dtype: torch.dtype,
    layout: str = "TN",
    bias: torch.Tensor | None = None,
    grad: bool = False,
) -> list[torch.Tensor]:
    """As Transformer Engine 2.20: cuBLASLt reads the bias in the type of the result, whatever its own. Zeros for the memory behind it."""
    left, right = (b.t() if layout[1] == "T" else b).to(dtype), (a.t() if layout[0] == "T" else a).to(dtype)
    result = left @ right
    if bias is not None:
        memory = torch.cat([bias.detach().view(torch.uint8), torch.zeros(64, dtype=torch.uint8)])
        result += memory.view(dtype)[: result.shape[-1]]
    return [result]


def parameters() -> list[torch.Tensor]:
    torch.manual_seed(5)
    shapes = ((TOKENS, 1, WIDTH), (EXPERTS, WIDTH), (EXPERTS,))
    return [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]


def test_a_bias_in_bfloat16_is_added_to_logits_in_float32(megatron: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe import moe_utils, router

    monkeypatch.setattr(moe_utils, "te_general_gemm", multiply)
    ours, plain = parameters(), parameters()
    logits = router.router_gating_linear(*ours, torch.float32)
    expected = torch.nn.functional.linear(*(p.float() for p in plain))
    torch.testing.assert_close(logits, expected)
    upstream = torch.randn(expected.shape)
    logits.backward(upstream)
    expected.backward(upstream)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.grad is not None and mine.grad.dtype == torch.bfloat16
        torch.testing.assert_close(mine.grad, theirs.grad)
