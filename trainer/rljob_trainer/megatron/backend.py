"""Describes what the trainer computes with (layers, kernels, optimizer), which depends on what is installed. For the log and the status."""

import importlib.util
import logging
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from rljob_trainer.machine import has_triton
from rljob_trainer.megatron.plain_torch.attention import FLASH_TYPES
from rljob_trainer.megatron.provider import HAVE_TE

log = logging.getLogger(__name__)

FUSED = {
    "RoPE": "apply_rope_fusion",
    "gradient accumulation": "gradient_accumulation_fusion",
    "activation": "bias_activation_fusion",
    "token permutation": "moe_permute_fusion",
    "router": "moe_router_fusion",
}
"""Kernels that a TransformerConfig may switch on."""


def describe(config: Any, optimizer: Any) -> str:
    """One line, for example `torch layers, SDPA attention, no fused kernels, torch AdamW, no Apex, gloo`. Rank 0 logs it.

    `config`: the TransformerConfig that the model was built with; `optimizer`: megatron's; None: nothing is trained.
    """
    fused = [name for name, key in FUSED.items() if getattr(config, key)]
    if has_triton(torch.cuda.is_available()):
        fused.append("log-probabilities")
    text = ", ".join(
        (
            f"Transformer Engine {version('transformer_engine')} layers"
            if HAVE_TE
            else f"torch layers, {_attention(config)}",
            f"fused {' and '.join(fused)}" if fused else "no fused kernels",
            _adam(optimizer),
            "Apex" if importlib.util.find_spec("apex") else "no Apex",
            dist.get_backend(),
        )
    )
    if dist.get_rank() == 0:
        log.warning("COMPUTES WITH: %s", text)
    return text


def _attention(config: Any) -> str:
    """The implementation that attention.py chooses."""
    flash = torch.cuda.is_available() and config.context_parallel_size == 1 and config.params_dtype in FLASH_TYPES
    return "flash attention" if flash else "SDPA attention"


def _adam(optimizer: Any) -> str:
    """Class of the inner optimizer. Chained optimizers all have the same; a rank may hold no shard of some."""
    if optimizer is None:
        return "no optimizer"
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    kinds = [type(part.optimizer) for part in parts if part.optimizer]
    return f"{kinds[0].__module__.partition('.')[0]} {kinds[0].__name__}" if kinds else "no optimizer here"
