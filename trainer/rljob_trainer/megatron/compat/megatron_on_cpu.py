"""Names of megatron-core's own, on a machine without a GPU: two call into CUDA below torch's Python names, and one forgets on CPU what it was
asked for (moe_utils.py:1184, `as_numpy`). Can go as torch_on_cpu.py.
"""

from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def _patch_megatron() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    token_dispatcher.maybe_move_tensor_to_cpu = _as_numpy


def _as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


PATCHES = (
    Patch(
        "megatron-core without a GPU",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch_megatron,
        needed=lambda: not torch.cuda.is_available(),
        replaces={
            "megatron/core/tensor_parallel/random.py:_get_cuda_rng_state": "5bc44fc6421cea89",
            "megatron/core/tensor_parallel/random.py:_set_cuda_rng_state": "bc661293c8301b0a",
            "megatron/core/transformer/moe/moe_utils.py:maybe_move_tensor_to_cpu": "305cf1bb7bbc566e",
        },
    ),
)
