"""On GPUs: what kernels of attention keep besides parameters and buffers survives a sleep that discards the weights.

vLLM 0.32 allocates all that a model makes while it is loaded in the memory of its weights, which a sleep of level 2 discards, and after it restores
buffers only. The kernels of sparse latent attention on Hopper (FLASH_ATTN_MLA_SPARSE: DeepSeek-V3.2, GLM-5) keep the boundaries of queries in a
tensor that is no buffer (`cu_seqlens_q_buffer`). With zeros in it no query is attended to, and the output is what was in memory before. vLLM's
issue 53343 is about such tensors. Can go when they are buffers.
"""

from typing import Any

import torch

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.cpu_engine import on_cpu

SCRATCH = ("topk_indices_buffer",)
"""Written in every pass before it is read."""
Kept = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, and their values in host memory."""


def constants(model: torch.nn.Module) -> Kept:
    """The tensors of all attention layers that are neither parameters nor buffers nor scratch, each once."""
    kernels = [vars(layer.impl) for layer in model.modules() if hasattr(layer, "impl")]
    found = {
        id(value): value
        for attributes in kernels
        for name, value in attributes.items()
        if isinstance(value, torch.Tensor) and name not in SCRATCH
    }
    return [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in found.values()]


def restore(kept: Kept) -> None:
    for tensor, value in kept:
        tensor.copy_(value)


def keep_constants() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    sleep, wake_up = Worker.sleep, Worker.wake_up

    def slept(worker: Any, level: int = 1) -> None:
        models = filter(None, (worker.model_runner.model, worker.get_draft_model())) if level == 2 else ()
        worker.rljob_kept = [pair for model in models for pair in constants(model)]
        sleep(worker, level)

    def woken(worker: Any, tags: list[str] | None = None) -> None:
        wake_up(worker, tags)
        if tags is None or "weights" in tags:
            restore(worker.rljob_kept)
            worker.rljob_kept = []

    Worker.sleep, Worker.wake_up = slept, woken


def _on_gpu() -> bool:
    return not on_cpu()


PATCHES = (
    Patch(
        "constants of attention in a sleep",
        "vllm",
        VERSIONS,
        apply=keep_constants,
        needed=_on_gpu,
        replaces={
            "vllm/v1/worker/gpu_worker.py:Worker.sleep": "de940ac197ccff5a",
            "vllm/v1/worker/gpu_worker.py:Worker.wake_up": "790f274a1c268c3b",
            "vllm/v1/attention/backends/mla/flashattn_mla_sparse.py:FlashAttnMLASparseImpl.__init__": "ebabc9b5b77b5847",
        },
    ),
)
