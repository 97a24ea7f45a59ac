"""Run vLLM's own API server, or with `--headless` the workers of another pod's: `python -m rljob_trainer.server.server <arguments of vllm serve>`.

None of its processes outlives the one that started it, however that ends: a surviving engine would keep its GPU.

The workers of a pod that is part of a server, but not its head, are those of vLLM's `--headless` (0.32, vllm/entrypoints/cli/serve.py,
`run_headless`). We say when they are up, to the kubelet as well, and leave it to the pod's supervisor to see that one ended.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from typing import NoReturn

import uvloop
from vllm import AsyncEngineArgs
from vllm.config import VllmConfig
from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.network_utils import get_tcp_uri
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from rljob_trainer.patches import UNSUPPORTED_VERSION, UnsupportedVersionError
from rljob_trainer.processes import die_with_parent
from rljob_trainer.server import compat, readiness
from rljob_trainer.wire.weights.protocol import FOLLOWER_FAILED, FOLLOWS

log = logging.getLogger(__name__)


def follow(parsed: argparse.Namespace) -> NoReturn:
    """Run workers for as long as this process lives. `parsed`: arguments of `vllm serve`."""
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(UsageContext.OPENAI_API_SERVER, headless=True)
    if parsed.data_parallel_size > 1:
        _follow_with_copies(parsed, config)
    else:
        _follow_with_workers(parsed, config)
    while True:  # a worker has ended; as the head's API server, this process waits to be ended for that
        signal.pause()


def _follow_with_workers(parsed: argparse.Namespace, config: VllmConfig) -> None:
    """Workers of the head's engine. Returns when one has ended."""
    try:
        executor = MultiprocExecutor(config, monitor_workers=False)
        readiness.answer(parsed.host, parsed.port, (parsed.master_addr, parsed.master_port))
    except Exception:
        log.exception(FOLLOWER_FAILED)
        sys.exit(1)
    print(FOLLOWS, flush=True)
    executor.start_worker_monitor(inline=True)


def _follow_with_copies(parsed: argparse.Namespace, config: VllmConfig) -> None:
    """Engines of their own, which the head's API server addresses. Returns when one has ended."""
    head, up = (parsed.data_parallel_address, parsed.master_port), threading.Event()

    def say_when_up() -> None:
        readiness.wait_for(head)
        readiness.answer(parsed.host, parsed.port, head)
        up.set()
        print(FOLLOWS, flush=True)

    engines = CoreEngineProcManager(
        local_engine_count=config.parallel_config.data_parallel_size_local,
        start_index=config.parallel_config.data_parallel_rank,
        local_start_index=0,
        vllm_config=config,
        local_client=False,
        handshake_address=get_tcp_uri(parsed.data_parallel_address, parsed.data_parallel_rpc_port),
        executor_class=Executor.get_class(config),
        log_stats=not parsed.disable_log_stats,
    )
    threading.Thread(target=say_when_up, name="readiness", daemon=True).start()
    engines.monitor_engine_liveness()
    if not up.is_set():  # an engine has logged why
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Serves, or follows, until SIGTERM."""
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    try:
        compat.install()
    except UnsupportedVersionError as error:
        print(error, file=sys.stderr)
        sys.exit(UNSUPPORTED_VERSION)
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(parsed)
    if parsed.headless:
        follow(parsed)
    if parsed.data_parallel_size_local not in (None, parsed.data_parallel_size):
        readiness.listen(parsed.port, (parsed.data_parallel_address, parsed.master_port))
    uvloop.run(run_server(parsed))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # a process that vLLM spawned
    die_with_parent()
