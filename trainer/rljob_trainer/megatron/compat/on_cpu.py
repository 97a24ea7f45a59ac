"""torch and megatron-core on a machine without a GPU.

The names of torch that megatron-core calls without asking whether there is a GPU, on a machine that has none.

Files and lines are megatron-core's. It has no CPU path of its own (NVIDIA/Megatron-LM#6270 begins one, for conversion of checkpoints).
Can go when it trains on CPU; until then each name goes with the calls that it stands for.

Names of megatron-core's own, on a machine without a GPU: two call into CUDA below torch's Python names, and one forgets on CPU what it was
asked for (moe_utils.py:1184, `as_numpy`). Can go with those.
"""

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils._device

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


class _Stream:
    """Stands for torch.cuda.Stream where everything is synchronous: there is one stream and it is always ready."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or self

    def synchronize(self, *_: Any) -> None: ...

    record = wait = wait_stream = wait_event = synchronize


def has_no_gpu() -> bool:
    return not torch.cuda.is_available()


def _do_nothing(*_: Any, **__: Any) -> None: ...


def _itself(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _random_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_random_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _patch_torch() -> None:
    """The names of torch that megatron calls without asking whether there is a GPU."""
    cuda = {
        "current_device": partial(
            torch.device, "cpu"
        ),  # used as `device=`: param_and_grad_buffer.py:1180 and 115 others
        "synchronize": _do_nothing,  # p2p_communication.py:419
        "Stream": _Stream,  # distributed_data_parallel.py:297
        "current_stream": _Stream,  # param_and_grad_buffer.py:632
        "get_rng_state": _random_state,  # tensor_parallel/random.py:303
        "manual_seed": _seed,  # tensor_parallel/random.py:118
    }
    # `with torch.device(...)` knows factories by identity and has to remember the originals, or models made on "meta" have no values
    torch.utils._device._device_constructors()
    # called in optimizer.py:698 and schedules.py:749
    factories = {name: _on_cpu(getattr(torch, name)) for name in ("tensor", "zeros")}
    tensor = {"cuda": _itself, "type": _tensor_type(torch.Tensor.type)}
    for owner, stand_ins in ((torch.cuda, cuda), (torch, factories), (torch.Tensor, tensor)):
        for name, stand_in in stand_ins.items():
            setattr(owner, name, stand_in)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`factory` with device "cuda" read as "cpu" and pinning left out."""

    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return on_cpu


def _tensor_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """distrib_optimizer.py:477 knows parameters by "torch.cuda.FloatTensor" only; megatron alone gets that answer."""

    def tensor_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        asked_by_megatron = sys._getframe(1).f_globals.get("__name__", "").startswith("megatron.")
        return answer.replace("torch.", "torch.cuda.", 1) if asked_by_megatron and not args and not kwargs else answer

    return tensor_type


def _patch_megatron() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    random._get_cuda_rng_state = _random_state
    random._set_cuda_rng_state = _set_random_state
    token_dispatcher.maybe_move_tensor_to_cpu = _as_numpy


def _as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


PATCHES = (
    Patch(
        "torch without a GPU",
        "torch",
        VERSIONS["torch"],
        _patch_torch,
        needed=has_no_gpu,
        replaces={
            "torch/cuda/__init__.py:current_device": "7f223198c213f111",
            "torch/cuda/__init__.py:synchronize": "04579c023044021a",
            "torch/cuda/__init__.py:current_stream": "9ff6eab8cb03327e",
            "torch/cuda/streams.py:Stream": "15df1b1774465e27",
            "torch/cuda/random.py:get_rng_state": "a9d88f397c542b62",
            "torch/cuda/random.py:manual_seed": "584c98dd494aaf29",
            "torch/utils/_device.py:_device_constructors": "dd491d564d1167e1",
        },
    ),
    Patch(
        "megatron-core without a GPU",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch_megatron,
        needed=has_no_gpu,
        replaces={
            "megatron/core/tensor_parallel/random.py:_get_cuda_rng_state": "5bc44fc6421cea89",
            "megatron/core/tensor_parallel/random.py:_set_cuda_rng_state": "bc661293c8301b0a",
            "megatron/core/transformer/moe/moe_utils.py:maybe_move_tensor_to_cpu": "305cf1bb7bbc566e",
        },
    ),
)
