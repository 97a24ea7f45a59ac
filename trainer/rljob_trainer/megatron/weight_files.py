"""The weight files of a model directory, as the bridge reads them."""

from collections.abc import KeysView
from functools import cached_property, lru_cache
from typing import Any

import torch
from megatron.bridge.models.hf_pretrained.base import PreTrainedBase
from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource, StateDict
from safetensors import safe_open

OPEN_FILES = 8
"""At a time. Weights are asked for layer by layer, and a layer is in a few files."""


class OpenFiles(SafeTensorsStateSource):
    """Files stay open from one tensor to the next. megatron-bridge opens a file again for every tensor, and so reads the names of all its tensors as
    often as it has tensors: minutes for the experts of a large model."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._file = lru_cache(OPEN_FILES)(self._opened)

    def __reduce__(self) -> tuple[Any, ...]:
        """Ranks send each other the bridge's configuration, of which this is a part. Open files stay where they are."""
        return OpenFiles, (self.model_name_or_path,)

    def get_all_keys(self) -> KeysView[str]:
        """Sorted. megatron-bridge looks for each name among them, and would compare it with half of a list."""
        return self._names.keys()

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(super().get_all_keys())

    def load_tensors(self, keys_to_load: list[str]) -> dict[str, torch.Tensor]:
        """Raises KeyError for a tensor that is in no file, FileNotFoundError for a file of the index that is not there."""
        return {key: self._file(self.key_to_filename_map[key]).get_tensor(key) for key in keys_to_load}

    def _opened(self, name: str) -> Any:
        return safe_open(self.path / name, framework="pt", device="cpu")


def keep_open(pretrained: PreTrainedBase, path: str) -> None:
    """Let `pretrained` read its weights through OpenFiles."""
    pretrained._state_dict_accessor = StateDict(OpenFiles(path))
