"""On CPU the later stages of a pipeline have memory for what they receive, also where nothing is compiled.

vLLM 0.32 makes it in the run by which it warms up what was compiled, and leaves that run out with `--enforce-eager`: the first step of a second
stage then fails ("assert self.intermediate_tensors is not None"). Can go when `sync_and_gather_intermediate_tensors` makes it.
"""

from typing import Any

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


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


PATCHES = (
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
)
