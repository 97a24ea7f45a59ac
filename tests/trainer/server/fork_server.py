"""Imports vLLM once and forks a server per line of standard input: `{"arguments": [...], "environment": {...}, "log": path}` -> pid.

A forked server is ready in seconds, a fresh process needs half a minute. The servers end with this process.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback


def child(order: dict) -> None:
    from rljob_trainer.server import server

    os.setsid()
    log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["environment"])
    code = 0
    try:
        server.main(order["arguments"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def main() -> None:
    from rljob_trainer.server import compat

    gc.disable()
    compat.install()
    for module in (
        "vllm.model_executor.models.qwen2",
        "vllm.model_executor.models.llama",
        "rljob_trainer.server.weights.engine",
        "trainer.server.digests",
    ):
        importlib.import_module(module)
    gc.freeze()  # a server collects several times while it starts: not through what it has from here, and would copy
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # whoever stops the tests closes our input; the servers must not outlive us
    print("ready", flush=True)
    groups = []
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            child(json.loads(line))
        groups.append(pid)
        print(pid, flush=True)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
