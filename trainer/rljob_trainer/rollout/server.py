"""Run vLLM's own API server: `python -m rljob_trainer.rollout.server <arguments of vllm serve>`.

On CPU the engine's processes are forked, and the model's class is looked at in this process. vLLM would spawn both, to keep CUDA out of it, and
each would import everything again: 60-87 s instead of 26-43 s (measured, with one).

None of its processes outlives the one that started it, however that ends: an engine would keep its GPU.
"""

import importlib
import multiprocessing
import os
import sys

import uvloop
from vllm.entrypoints.openai import api_server
from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import utils as engine_processes
from vllm.v1.executor import multiproc_executor

from rljob_trainer.processes import die_with_parent


def fork_engine() -> None:
    """Import what the engine's processes need, and make vLLM fork them; the same for the look at the model."""
    for name in ("v1.engine.core", "v1.worker.cpu_worker", "v1.worker.cpu_model_runner"):
        importlib.import_module(f"vllm.{name}")
    for module in (engine_processes, multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    registry._run_in_subprocess = lambda look: look()


def main(arguments: list[str]) -> None:
    """Serves until SIGTERM."""
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    if current_platform.is_cpu():
        fork_engine()
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(parsed)
    uvloop.run(api_server.run_server(parsed))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # a process that vLLM spawned
    die_with_parent()
