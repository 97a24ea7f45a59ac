"""How fast megatron-core alone trains: a GPT model of its own, its cross entropy, its optimizer, nothing of ours.

    python -m benchmarks.probe CONFIGURATION    one of CONFIGURATIONS; prints one JSON line per shape

`torch` needs no Transformer Engine and must not find one. The figure that our training phase is compared with (training.py).
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from benchmarks.shapes import QWEN2_1_5B, Shape, shapes

CONFIGURATIONS = ("torch", "fused", "te")
STEPS = 6


def main(configuration: str) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(key, value)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(1, 1)
    model_parallel_cuda_manual_seed(1)
    ddp, optimizer = build(configuration)
    for shape in shapes().values():
        print(json.dumps(measure(ddp, optimizer, shape, configuration)), flush=True)


def build(configuration: str) -> tuple[Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = transformer_config(configuration)
    if configuration == "te":
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = attention()
    q = QWEN2_1_5B
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=q["vocab_size"],
        max_sequence_length=q["max_position_embeddings"],
        position_embedding_type="rope",
        share_embeddings_and_output_weights=True,
        rotary_base=int(q["rope_theta"]),
    )
    model = model.cuda().to(torch.bfloat16)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    ddp = DistributedDataParallel(config, ddp_config, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-6, bf16=True, use_distributed_optimizer=True, clip_grad=1.0)
    return ddp, get_megatron_optimizer(settings, [ddp])


def transformer_config(configuration: str) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    q = QWEN2_1_5B
    fused: dict[str, Any] = {"cross_entropy_loss_fusion": False}
    if configuration != "torch":
        stand_in_for_apex()
        fused = {
            "cross_entropy_loss_fusion": True,
            "cross_entropy_fusion_impl": "te",
            "apply_rope_fusion": True,
            "gradient_accumulation_fusion": True,
        }
    return TransformerConfig(
        **{"gradient_accumulation_fusion": False}
        | {
            "num_layers": q["num_hidden_layers"],
            "hidden_size": q["hidden_size"],
            "num_attention_heads": q["num_attention_heads"],
            "num_query_groups": q["num_key_value_heads"],
            "ffn_hidden_size": q["intermediate_size"],
            "bf16": True,
            "params_dtype": torch.bfloat16,
            "pipeline_dtype": torch.bfloat16,
            "gated_linear_unit": True,
            "activation_func": F.silu,
            "normalization": "RMSNorm",
            "layernorm_epsilon": q["rms_norm_eps"],
            "add_bias_linear": False,
            "add_qkv_bias": True,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "bias_activation_fusion": True,
            "bias_dropout_fusion": True,
            "masked_softmax_fusion": False,
            "persist_layer_norm": False,
        }
        | fused
    )


def stand_in_for_apex() -> None:
    """megatron asks for a module of Apex before it fuses the accumulation of gradients."""
    import types

    from transformer_engine.pytorch.cpp_extensions import general_gemm

    def accumulate(inputs: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor) -> None:
        general_gemm(inputs, gradient, out_dtype=total.dtype, layout="NT", out=total, accumulate=True, grad=True)

    module: Any = types.ModuleType("fused_weight_gradient_mlp_cuda")
    module.wgrad_gemm_accum_fp32 = module.wgrad_gemm_accum_fp16 = accumulate
    sys.modules[module.__name__] = module
    from megatron.core.tensor_parallel import layers

    layers.fused_weight_gradient_mlp_cuda, layers._grad_accum_fusion_available = module, True


def attention() -> type:
    """Flash attention as torch has it; megatron's own local attention keeps all scores and takes no packed sequences."""
    from megatron.core.transformer.module import MegatronModule

    class Attention(MegatronModule):
        def __init__(self, config: Any, *_: Any, **__: Any) -> None:
            super().__init__(config=config)

        def forward(self, q: Any, k: Any, v: Any, *_: Any, packed_seq_params: Any = None, **__: Any) -> torch.Tensor:
            p = packed_seq_params
            if p is None:
                q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                return out.permute(2, 0, 1, 3).flatten(2)
            q, k, v = (x.squeeze(1) if x.dim() == 4 else x for x in (q, k, v))
            starts, longest = p.cu_seqlens_q, p.max_seqlen_q
            return varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0)).flatten(1)

    return Attention


def measure(ddp: Any, optimizer: Any, shape: Shape, configuration: str) -> dict[str, Any]:
    """The best of STEPS steps after the first."""
    micro_batches = rectangles(shape) if len(set(shape.lengths)) == 1 else packs(shape)
    parameters = sum(p.numel() for p in ddp.parameters())
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        for tokens, positions, packed in micro_batches:
            loss = ddp(tokens, positions, None, labels=tokens, packed_seq_params=packed).sum() / shape.tokens
            loss.backward()
        ddp.finish_grad_sync()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    best = min(times[1:])
    return {
        "what": "probe",
        "configuration": configuration,
        "shape": shape.name,
        "tokens_per_s": round(shape.tokens / best),
        "mfu": round(shape.flops(parameters) / best / 989e12, 4),
        "seconds": [round(t, 4) for t in times],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "loss": float(loss.detach()),
    }


def rectangles(shape: Shape) -> list[tuple[torch.Tensor, torch.Tensor, None]]:
    """Sequences of one length as rows of one micro-batch."""
    rows, length = len(shape.lengths), shape.lengths[0]
    tokens = torch.randint(0, QWEN2_1_5B["vocab_size"], (rows, length), device="cuda")
    return [(tokens, torch.arange(length, device="cuda").expand(rows, length).contiguous(), None)]


def packs(shape: Shape) -> list[tuple[torch.Tensor, torch.Tensor, Any]]:
    """Sequences behind each other, as they come, filled up to a multiple of 16 each as flash attention likes it."""
    from megatron.core.packed_seq_params import PackedSeqParams

    groups: list[list[int]] = [[]]
    for length in shape.lengths:
        length = -(-length // 16) * 16
        if sum(groups[-1]) + length > shape.tokens_per_micro_batch:
            groups.append([])
        groups[-1].append(length)
    found = []
    for group in groups:
        starts = torch.tensor([0, *group]).cumsum(0).to(device="cuda", dtype=torch.int32)
        packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=starts,
            cu_seqlens_kv=starts,
            max_seqlen_q=max(group),
            max_seqlen_kv=max(group),
        )
        tokens = torch.randint(0, QWEN2_1_5B["vocab_size"], (1, sum(group)), device="cuda")
        found.append((tokens, torch.cat([torch.arange(n) for n in group])[None].cuda(), packed))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
