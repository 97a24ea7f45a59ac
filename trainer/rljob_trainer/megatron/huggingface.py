"""Writes the policy as a Hugging Face model, or its adapters as a directory of the peft library."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_api.spec.model import LoraSpec
from rljob_trainer.checkpoint.files import appears, sync_file
from rljob_trainer.megatron.lora_parts import PREFIX
from rljob_trainer.megatron.parallel_state import current_device
from rljob_trainer.model_files import DTYPES
from rljob_trainer.wire.weights.plan import GatherPhase


def write_tensors(tensors: Mapping[str, torch.Tensor], target: Path) -> None:
    """Write a safetensors file with the default mode for new files: the library itself makes files that only the owner can read."""
    target.touch()
    mode = target.stat().st_mode
    save_file(dict(tensors), target, metadata={"format": "pt"})
    target.chmod(mode)


SHARD_BYTES = 4 * 2**30
_PART = ".part"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")


class Exporting(Protocol):
    """What can be written: an Engine, or a single model."""

    def export_owned(self) -> list[GatherPhase]:
        """See Engine.export_owned. Collective."""
        ...

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """See Engine.hugging_face_config."""
        ...

    @property
    def heartbeat(self) -> Callable[[], None]:
        """Called as tensors are written."""
        ...


class WritableDraft(Protocol):
    """A draft that can be written: DraftTraining."""

    @property
    def directory(self) -> Path:
        """From which it was read."""
        ...

    def in_files(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of its files."""
        ...


def write_hugging_face(engine: Exporting, source: Path, target: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write the policy into the new directory `target`, which all ranks share. Every rank writes what it owns, one shard in memory at a time.
    Collective; complete when it returns.

    `source` is the model directory that the job started from. Everything at its top but weights is copied; config.json gets our dtype.
    """
    if dist.get_rank() == 0:
        target.mkdir(parents=True)
    dist.barrier()
    appears(target.parent, target.is_dir)
    count = torch.tensor([_write_shards(_owned(engine), target, shard_bytes)], device=current_device())
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        dtype = _name_shards(target, int(count))
        _copy_the_rest(source, target)
        config = engine.hugging_face_config(json.loads((source / "config.json").read_text()))
        _write_config(config, target, dtype)
    dist.barrier()


def _owned(engine: Exporting) -> Iterator[tuple[str, torch.Tensor]]:
    """This rank's tensors, with a heartbeat after each one has been copied or its shard written."""
    for tensors, owns, _ in engine.export_owned():
        for named in tensors:
            if owns:
                yield named
            engine.heartbeat()


def _write_shards(tensors: Iterable[tuple[str, torch.Tensor]], target: Path, shard_bytes: int) -> int:
    """Write shards under temporary names, in whose order they get their own. Returns how many."""
    count = 0
    for count, shard in enumerate(_shards(tensors, shard_bytes), start=1):
        file = target / f"{dist.get_rank():06}-{count:06}{_PART}"
        write_tensors(shard, file)
        sync_file(file)  # rank 0 cannot do it for another machine
    return count


def _name_shards(target: Path, count: int) -> str:
    """Name the shards of all ranks, and write an index if there are several. Returns the dtype of most numbers, as config.json names it: biases that
    choose experts are in float32 next to weights in bfloat16.

    Raises OSError when not all of them are there.
    """
    appears(target, lambda: len(list(target.glob(f"*{_PART}"))) == count)
    parts = sorted(target.glob(f"*{_PART}"))
    if len(parts) != count:
        raise OSError(f"{target} shows {len(parts)} of the {count} files that the ranks have written")
    where: dict[str, str] = {}
    size, numbers = 0, Counter[str]()
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors"
        with safe_open(part, "pt") as shard:
            for name in list(shard.keys()):
                where[name], tensor = file, shard.get_slice(name)
                numbers[tensor.get_dtype()] += prod(tensor.get_shape())
        size += data_bytes(part)
        part.rename(target / file)
    if count > 1:
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return DTYPES[numbers.most_common(1)[0][0]]


def data_bytes(file: Path) -> int:
    """Bytes of the tensors in a safetensors file: what follows its header, whose length is its first 8 bytes."""
    with file.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    return file.stat().st_size - 8 - header


def _shards(tensors: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yields copies of consecutive tensors in host memory, at most `limit` bytes together; a larger tensor is a shard of its own."""
    shard: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > limit:
            yield shard
            shard = {}
        shard[name] = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format).copy_(tensor)
    if shard:
        yield shard


def _copy_the_rest(source: Path, target: Path) -> None:
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, target / file.name)


def _write_config(config: dict[str, Any], target: Path, dtype: str) -> None:
    config.pop("torch_dtype", None)  # its name before transformers 5
    config["dtype"] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


DRAFT = "draft"
"""In the directory of an exported policy, that of the draft which was trained with it."""


def write_draft(draft: WritableDraft, policy: Path) -> None:
    """Write a draft into the new directory DRAFT of `policy`, which servers take as that from which it was read. Rank 0 writes. Collective; complete
    when it returns."""
    target = policy / DRAFT
    if dist.get_rank() == 0:
        target.mkdir(parents=True)
        shutil.copyfile(draft.directory / "config.json", target / "config.json")
        write_tensors({name: tensor.cpu() for name, tensor in draft.in_files()}, target / "model.safetensors")
    dist.barrier()


TEMPLATE = "chat_template.jinja"
"""The chat template, where the model has it in a file of its own."""


def write_adapters(adapters: Iterator[tuple[str, torch.Tensor]], lora: LoraSpec, source: Path, target: Path) -> None:
    """Write adapters, as Engine.export_adapters yields them, into the new directory `target`. Rank 0 writes. Collective; complete when it returns.

    `source` is the directory of their base model. Query, key and value share one A, as do gate and up. It is written for each of them, unless the
    model's files have them as one tensor.
    """
    copies = ((name, tensor.detach().cpu().clone(memory_format=torch.contiguous_format)) for name, tensor in adapters)
    tensors = {f"{PREFIX}{name}": tensor for name, tensor in copies}
    if dist.get_rank() == 0:
        save_adapters(tensors, lora, source, target)
    dist.barrier()


def save_adapters(tensors: dict[str, torch.Tensor], lora: LoraSpec, source: Path, target: Path) -> None:
    """Write adapters, by their names in the peft library, into the new directory `target`."""
    target.mkdir(parents=True)
    write_tensors(tensors, target / WEIGHTS)
    (target / CONFIG).write_text(json.dumps(_adapter_config(lora, source, list(tensors)), indent=2) + "\n")
    if (source / TEMPLATE).is_file():
        shutil.copyfile(source / TEMPLATE, target / TEMPLATE)


def _adapter_config(lora: LoraSpec, source: Path, tensors: list[str]) -> dict[str, Any]:
    """The fields of adapter_config.json without defaults. A target module is the third last part of a tensor's name: `....q_proj.lora_A.weight`."""
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
