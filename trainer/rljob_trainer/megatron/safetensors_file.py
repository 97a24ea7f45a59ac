"""Weights of an export as a file that whoever may read the other files of its directory may read."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_tensors(tensors: Mapping[str, torch.Tensor], target: Path) -> None:
    """The new file `target`, with the mode that a new file gets here: safetensors itself lets nobody but the owner read what it writes."""
    target.touch()
    mode = target.stat().st_mode
    save_file(dict(tensors), target, metadata={"format": "pt"})
    target.chmod(mode)
