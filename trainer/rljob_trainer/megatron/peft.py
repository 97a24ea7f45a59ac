"""The adapters as a directory of the peft library: `PeftModel.from_pretrained(base model, directory)`."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rljob_api.spec.model import LoraSpec
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.safetensors_file import write_tensors

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
TEMPLATE = "chat_template.jinja"
"""How the adapters' conversations were written, where the model has it in a file of its own."""
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
    write_tensors(tensors, target / WEIGHTS)
    (target / CONFIG).write_text(json.dumps(_config(lora, source, list(tensors)), indent=2) + "\n")
    if (source / TEMPLATE).is_file():
        shutil.copyfile(source / TEMPLATE, target / TEMPLATE)


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
