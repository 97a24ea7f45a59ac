"""Routers with a bias (gpt-oss) add it to their product in float32, and not inside of it.

megatron-core passes Transformer Engine a bias in bfloat16 for a result in float32 (core/transformer/moe/moe_utils.py, RouterGatingLinearFunction).
cuBLASLt reads it in the type of the result: two biases become one number, and the rest is memory behind them. Tokens go to other experts, without an
error. Can go when Transformer Engine reads the bias in its own type (NVIDIA/TransformerEngine#3562).
"""

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _add_after_the_product() -> None:
    from megatron.core.transformer.moe import router

    product = router.router_gating_linear

    def logits(
        inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        found = product(inputs, weight, None, dtype)
        return found if bias is None else found + bias.to(dtype)

    router.router_gating_linear = logits


_UTILS = "megatron/core/transformer/moe/moe_utils.py"
PATCHES = (
    Patch(
        "biases of routers",
        "megatron-core",
        VERSIONS["megatron-core"],
        _add_after_the_product,
        replaces={
            f"{_UTILS}:router_gating_linear": "a89388be167ed9d0",
            f"{_UTILS}:RouterGatingLinearFunction": "e8da0e16741cbe9a",
            "megatron/core/transformer/moe/router.py:Router.gating": "3cd294d0dde76a7b",
        },
    ),
)
