"""Latent attention on CPUs: how queries and keys are rotated, and by which kernels float32 is computed.

On CPU queries and keys of latent attention are rotated in torch.

They are [tokens, heads, width]. vLLM 0.32's kernel for CPUs counts heads in the last dimension alone, and takes the stride of heads for that of
tokens, so that it rotates other numbers than it should: log-probabilities of a random model were off by 0.03
(tests/trainer/server/test_families.py). YaRN has no such kernel there. Can go when the kernel takes three dimensions.

On CPUs with AMX latent attention of another type than bfloat16 is computed by vLLM's kernels for every CPU.

vLLM 0.32 takes the kernels for AMX wherever a CPU has it, and these compute in bfloat16 only. Can go when `get_attn_backend_cls` asks for the type.
"""

from typing import Any

import torch

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.cpu_engine import on_cpu


def rotate_heads() -> None:
    """Have vLLM's formula in torch rotate what has a dimension of heads."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    kernel = RotaryEmbedding.forward_cpu

    def rotated(rope: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
        if query.dim() == 3:
            return rope.forward_native(positions, query, key)
        return kernel(rope, positions, query, key)

    RotaryEmbedding.forward_cpu = rotated


def keep_types() -> None:
    """Name the kernels for every CPU before vLLM looks at the CPU."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    check = CpuPlatform.check_and_update_config

    def checked(config: Any) -> None:
        model = config.model_config
        if model and model.use_mla and model.dtype != torch.bfloat16:
            config.attention_config.backend = AttentionBackendEnum.CPU_MLA
        check(config)

    CpuPlatform.check_and_update_config = staticmethod(checked)


PATCHES = (
    Patch(
        "rotation of latent attention on CPU",
        "vllm",
        VERSIONS,
        apply=rotate_heads,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/rotary_embedding/base.py:RotaryEmbedding.forward_cpu": "640033a3cc3e4f19",
            "vllm/model_executor/layers/rotary_embedding/base.py:RotaryEmbedding.forward_native": "2ea2841a2327b2d2",
            "vllm/model_executor/layers/rotary_embedding/deepseek_scaling_rope.py:DeepseekScalingRotaryEmbedding.forward_native": "2b757c8868b84f54",
        },
    ),
    Patch(
        "types of latent attention on CPU",
        "vllm",
        VERSIONS,
        apply=keep_types,
        needed=on_cpu,
        replaces={
            "vllm/platforms/cpu.py:CpuPlatform.get_attn_backend_cls": "45e86d72cc7fb1be",
            "vllm/platforms/cpu.py:CpuPlatform.check_and_update_config": "0bfef5affa0c9a4d",
        },
    ),
)
