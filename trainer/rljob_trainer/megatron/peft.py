"""The adapters as a directory of the peft library: `PeftModel.from_pretrained(base model, directory)`."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from rljob_api.spec.model import LoraSpec
from rljob_trainer.megatron.engine import Engine

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""Of every tensor's name, before transformers' own."""


def write_adapters(engine: Engine, lora: LoraSpec, source: Path, target: Path) -> None:
    """Write the policy's adapters into the new directory `target`. Rank 0 writes. Collective; complete when it returns.

    `source` is the model directory that they belong to. Queries, keys and values have one A, and gate and up: it is written for each of them.
    """
    copies = (
        (name, tensor.detach().cpu().clone(memory_format=torch.contiguous_format))
        for name, tensor in engine.export_adapters()
    )
    tensors = {f"{PREFIX}{name}": tensor for name, tensor in copies}
    if dist.get_rank() == 0:
        save(tensors, lora, source, target)
    dist.barrier()


def save(tensors: dict[str, torch.Tensor], lora: LoraSpec, source: Path, target: Path) -> None:
    """The files of the new directory `target`, of adapters by the library's names."""
    target.mkdir(parents=True)
    save_file(tensors, target / WEIGHTS, {"format": "pt"})
    (target / CONFIG).write_text(json.dumps(_config(lora, source, list(tensors)), indent=2) + "\n")
    shutil.copymode(target / CONFIG, target / WEIGHTS)  # safetensors lets nobody but the owner read it


def _config(lora: LoraSpec, source: Path, tensors: list[str]) -> dict[str, Any]:
    """What peft needs; all else has its defaults. Modules are called by the last part of their names: `....q_proj.lora_A.weight`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(source),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        "inference_mode": True,
    }
