"""On CPU the engine's processes are forked, and the model's class is looked at in the API server's process.

vLLM spawns both, to keep CUDA out of the parent, and each imports everything again: 60 to 87 s until ready in place of 26 to 43 s (measured with
one engine process). Nothing here touches a GPU. Can go when vLLM honours VLLM_WORKER_MULTIPROC_METHOD=fork for all of them.
"""

import importlib
import multiprocessing

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS


def fork_engine() -> None:
    """Import what the engine's processes need, and make vLLM fork them."""
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils as engine_processes
    from vllm.v1.executor import multiproc_executor

    for name in ("v1.engine.core", "v1.worker.cpu_worker", "v1.worker.cpu_model_runner"):
        importlib.import_module(f"vllm.{name}")
    for module in (engine_processes, multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    registry._run_in_subprocess = lambda look: look()


def on_cpu() -> bool:
    """Whether vLLM runs there."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


PATCHES = (
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
