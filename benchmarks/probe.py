"""How fast megatron-core alone trains: a GPT model of its own, its cross entropy, its optimizer, nothing of ours.

    torchrun --nproc-per-node N -m benchmarks.probe CONFIGURATION [--size NAME]

One of CONFIGURATIONS; rank 0 prints one JSON line per shape. `torch` needs no Transformer Engine and must not find one. Several ranks are data
parallel, and the experts of a model that has some are cut over them. The figure that our training phase is compared with (training.py).
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from benchmarks.shapes import MODELS, PEAK_FLOPS, Shape, shapes

CONFIGURATIONS = ("torch", "fused", "te")
STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.probe")
    parser.add_argument("configuration", choices=CONFIGURATIONS)
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    options = parser.parse_args()
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    model = MODELS[options.size]
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(1, 1, expert_model_parallel_size=ranks if "num_experts" in model else 1)
    model_parallel_cuda_manual_seed(1)
    ddp, optimizer = build(options.configuration, model)
    for shape in shapes().values():
        row = measure(ddp, optimizer, shape, options.configuration, model)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def build(configuration: str, q: dict[str, Any]) -> tuple[Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = transformer_config(configuration, q)
    if configuration == "te":
        experts = (
            {"num_experts": q["num_experts"], "moe_grouped_gemm": True, "qk_layernorm": True}
            if "num_experts" in q
            else {}
        )
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(**experts)
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = attention()
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=q["vocab_size"],
        max_sequence_length=q["max_position_embeddings"],
        position_embedding_type="rope",
        share_embeddings_and_output_weights=q["tie_word_embeddings"],
        rotary_base=int(q["rope_theta"]),
    )
    model = model.cuda().to(torch.bfloat16)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    ddp = DistributedDataParallel(config, ddp_config, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-6, bf16=True, use_distributed_optimizer=True, clip_grad=1.0)
    return ddp, get_megatron_optimizer(settings, [ddp])


def transformer_config(configuration: str, q: dict[str, Any]) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

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
            "add_qkv_bias": q["model_type"] == "qwen2",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "bias_activation_fusion": True,
            "bias_dropout_fusion": True,
            "masked_softmax_fusion": False,
            "persist_layer_norm": False,
        }
        | fused
        | experts_of(q)
    )


def experts_of(q: dict[str, Any]) -> dict[str, Any]:
    """What the configuration says of experts, as the product has it: no auxiliary loss, a router in float32."""
    if "num_experts" not in q:
        return {}
    return {
        "kv_channels": q["head_dim"],
        "qk_layernorm": True,
        "num_moe_experts": q["num_experts"],
        "moe_router_topk": q["num_experts_per_tok"],
        "moe_ffn_hidden_size": q["moe_intermediate_size"],
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_router_pre_softmax": False,
        "expert_model_parallel_size": dist.get_world_size(),
    }


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
            attended = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
            assert isinstance(attended, torch.Tensor), "without return_aux"
            return attended.flatten(1)

    return Attention


def measure(ddp: Any, optimizer: Any, shape: Shape, configuration: str, model: dict[str, Any]) -> dict[str, Any]:
    """The best of STEPS steps after the first."""
    gpus = dist.get_world_size()
    own = shape.lengths[dist.get_rank() :: gpus]
    cut = rectangles if len(set(shape.lengths)) == 1 else partial(packs, limit=shape.tokens_per_micro_batch)
    micro_batches = cut(own, model["vocab_size"])
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
        "tokens_per_s": round(shape.tokens / best / gpus),
        "mfu": round(shape.flops(model) / best / gpus / PEAK_FLOPS, 4),
        "seconds": [round(t, 4) for t in times],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "loss": float(loss.detach()),
    }


def rectangles(lengths: tuple[int, ...], vocabulary: int) -> list[tuple[torch.Tensor, torch.Tensor, None]]:
    """Sequences of one length as rows of one micro-batch."""
    rows, length = len(lengths), lengths[0]
    tokens = torch.randint(0, vocabulary, (rows, length), device="cuda")
    return [(tokens, torch.arange(length, device="cuda").expand(rows, length).contiguous(), None)]


def packs(lengths: tuple[int, ...], vocabulary: int, limit: int) -> list[tuple[torch.Tensor, torch.Tensor, Any]]:
    """Sequences behind each other, as they come, filled up to a multiple of 16 each as flash attention likes it."""
    from megatron.core.packed_seq_params import PackedSeqParams

    groups: list[list[int]] = [[]]
    for length in lengths:
        length = -(-length // 16) * 16
        if sum(groups[-1]) + length > limit:
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
        tokens = torch.randint(0, vocabulary, (1, sum(group)), device="cuda")
        found.append((tokens, torch.cat([torch.arange(n) for n in group])[None].cuda(), packed))
    return found


if __name__ == "__main__":
    main()
