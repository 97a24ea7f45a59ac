"""The engine on CPUs: guessed tokens, stages of a pipeline, and how its processes start.

On CPU guessed tokens are checked at the request's own temperature, top_p and top_k.

vLLM 0.32 spreads these over the guesses of a request with a kernel for which its CPU build has a function in C++, that reads and writes integers. It
is given copies of the floats as integers, and what it writes into them is lost, so that logits are divided by memory that nobody has set: guesses
were accepted by another distribution than the policy's, and log-probabilities were NaN (tests/trainer/server/test_speculation.py). The spreading is
one operation of torch. Can go when `_expand_kernel_impl` (vllm/utils/cpu_triton_utils.py) writes floats.

On CPU the later stages of a pipeline have memory for what they receive, also where nothing is compiled.

vLLM 0.32 makes it in the run by which it warms up what was compiled, and leaves that run out with `--enforce-eager`: the first step of a second
stage then fails ("assert self.intermediate_tensors is not None"). Can go when `sync_and_gather_intermediate_tensors` makes it.

On CPU the engine's processes are forked, and the model's class is looked at in the API server's process.

vLLM spawns both, to keep CUDA out of the parent, and each imports everything again: 60 to 87 s until ready in place of 26 to 43 s (measured with
one engine process). Nothing here touches a GPU. Can go when vLLM honours VLLM_WORKER_MULTIPROC_METHOD=fork for all of them.
"""

import importlib
import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS


def spread(
    values: torch.Tensor, ends: torch.Tensor, count: int, replace_from: float = 0, replace_to: float = 0
) -> torch.Tensor:
    """[count], of each guess the value of its request. `values` and `ends`: [requests]; the guesses of request i end before `ends[i]`. `replace_from`
    becomes `replace_to`."""
    kept = torch.where(values == replace_from, replace_to, values).to(values.dtype)
    return kept.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1)), output_size=count)


def _spread_in_torch() -> None:
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = spread


def make_room() -> None:
    """As `_dummy_run` does, when the model has been loaded."""
    from vllm.distributed import get_pp_group
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    load = CPUModelRunner.load_model

    def loaded(runner: Any, *arguments: Any, **named: Any) -> None:
        load(runner, *arguments, **named)
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )

    CPUModelRunner.load_model = loaded


def fork_engine() -> None:
    """Import what the engine's processes need, and make vLLM fork them."""
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils as engine_processes
    from vllm.v1.executor import multiproc_executor

    for name in ("v1.engine.core", "v1.worker.cpu_worker", "v1.worker.cpu_model_runner"):
        importlib.import_module(f"vllm.{name}")
    for module in (engine_processes, multiproc_executor):
        module.get_mp_context = partial(multiprocessing.get_context, "fork")
    registry._run_in_subprocess = _here


def _here(look: Callable[[], Any]) -> Any:
    return look()


def on_cpu() -> bool:
    """Whether vLLM runs there."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


PATCHES = (
    Patch(
        "temperatures of guesses on CPU",
        "vllm",
        VERSIONS,
        apply=_spread_in_torch,
        needed=on_cpu,
        replaces={
            "vllm/v1/sample/rejection_sampler.py:expand_batch_to_tokens": "f03164e2ce125ab1",
            "vllm/utils/cpu_triton_utils.py:_expand_kernel_impl": "47b39d9584bf7ec7",
        },
    ),
    Patch(
        "stages of a pipeline on CPU",
        "vllm",
        VERSIONS,
        apply=make_room,
        needed=on_cpu,
        replaces={
            "vllm/v1/worker/cpu_model_runner.py:CPUModelRunner.load_model": "772a3a2c45e59d87",
            "vllm/v1/worker/cpu_model_runner.py:CPUModelRunner.warming_up_model": "925672ca1d5240ef",
            "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.sync_and_gather_intermediate_tensors": "39e4658b6f95353d",
        },
    ),
    Patch(
        "forked engine processes",
        "vllm",
        VERSIONS,
        apply=fork_engine,
        needed=on_cpu,
        replaces={
            "vllm/utils/system_utils.py:get_mp_context": "0a2d1f717cdebfc4",
            "vllm/model_executor/models/registry.py:_run_in_subprocess": "fe4a0660f728293b",
        },
    ),
)
