"""The workers of a pod that is part of a server, but not its head: vLLM's `--headless` (0.32, vllm/entrypoints/cli/serve.py, `run_headless`). It says
when they are up, to the kubelet as well, and leaves it to the pod's supervisor to see that one ended."""

import argparse
import logging
import signal
import sys

from vllm import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from rljob_trainer.server import readiness
from rljob_trainer.wire.weights.protocol import FOLLOWER_FAILED, FOLLOWS

log = logging.getLogger(__name__)


def follow(parsed: argparse.Namespace) -> None:
    """Run workers for as long as this process lives. `parsed`: arguments of `vllm serve`."""
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(UsageContext.OPENAI_API_SERVER, headless=True)
    try:
        executor = MultiprocExecutor(config, monitor_workers=False)
        readiness.answer(parsed.host, parsed.port, (parsed.master_addr, parsed.master_port))
    except Exception:
        log.exception(FOLLOWER_FAILED)
        sys.exit(1)
    print(FOLLOWS, flush=True)
    executor.start_worker_monitor(inline=True)
    while True:  # a worker has ended; as the head's API server, this process waits to be ended for that
        signal.pause()
