"""Converts the images of a request (wire/generate.py) to the input of vLLM's engine."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def multimodal_input(tokens: list[int], images: Sequence[dict[str, Any]], request: str) -> Any:
    """vLLM's engine input for models like Qwen2-VL, as its own processor would make it (vllm/model_executor/models/qwen2_vl.py,
    `_create_qwen2vl_field_factory`).

    Images get names unique to the `request`, so that vLLM never reuses embeddings that an earlier policy computed. Raises KeyError, ValueError.
    """
    # imported here, because it takes seconds and the front alone does not need it
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    grids = torch.tensor([(1, *image["grid"]) for image in images])
    patches, lengths = grids.prod(-1), [g[0] * g[1] // image["merge"] ** 2 for image in images if (g := image["grid"])]
    given = {"pixel_values": torch.cat([_pixels(image) for image in images]), "image_grid_thw": grids}
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    places = [PlaceholderRange(image["place"], n) for image, n in zip(images, lengths, strict=True)]
    names = [f"{request}-{i}" for i in range(len(images))]
    items: Any = MultiModalKwargsItems.from_hf_inputs(given, fields)
    return mm_input(tokens, items, {"image": names}, {"image": places})


def _pixels(image: dict[str, Any]) -> Any:
    """[patches, values of a patch]"""
    flat = np.frombuffer(base64.b64decode(image["pixels"], validate=True), "<f4")
    return torch.from_numpy(flat.reshape(image["grid"][0] * image["grid"][1], -1).copy())
