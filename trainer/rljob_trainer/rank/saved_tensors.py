"""The tensors of a model's files, as servers get them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from rljob_trainer.model_files import weight_files
from rljob_trainer.wire.weights.multi_token import is_copy, multi_token_layers


def tensors_of(directory: Path, heartbeat: Callable[[], None]) -> Iterator[tuple[str, torch.Tensor]]:
    """What servers get of a model's files, which the base model may have with copies that are in no update. `heartbeat`: called before each."""
    further = multi_token_layers(json.loads((directory / "config.json").read_text()))
    for file in weight_files(directory):
        with safe_open(file, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118 it is no dict
                heartbeat()
                if not is_copy(name, further):
                    yield name, shard.get_tensor(name)
