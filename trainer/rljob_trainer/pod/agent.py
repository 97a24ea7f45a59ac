"""torchrun's agent for one attempt: static rendezvous with the other nodes, and for each local rank a monitor that waits for it.

torchrun's agent polls ten times a second, takes the first dead rank that it finds for the failed one, and ends the others. It cannot tell a rank that
was killed from one that lost its peer between two polls. A monitor waits for a single rank, so it knows how that rank ended.
"""

import logging
import os
import signal
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rljob_api.text import join_host_port
from rljob_trainer import failure
from rljob_trainer.pod.fork_server import ForkRequest, lead_session, run_module
from rljob_trainer.pod.logs import tail
from rljob_trainer.processes import die_with_parent

WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def run(request: ForkRequest) -> int:
    """Run the local ranks. Returns 0 when all of them ended with 0, else 1; then some process of the attempt has written why.

    Called in a process of its own, which becomes a session leader, so that the launcher can kill the whole session.
    """
    lead_session(request)
    die_with_parent()
    # torchrun logs ten lines for what monitors report in one
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    directory = Path(request.directory)
    try:
        elastic_launch(_config(request), monitor)(request)
    except ChildFailedError as error:
        _record_lost_monitors(directory, error)
    except SignalException:
        return 1
    except Exception as error:
        failure.write(directory, "agent", error)
    else:
        return 0
    return 1


def monitor(request: ForkRequest) -> None:
    """Called by torchrun in the process of a local rank. Returns when the rank ended with 0, else ends the process with the cause recorded."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    rank, log = int(os.environ["RANK"]), request.logs[int(os.environ["LOCAL_RANK"])]
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        run_module(request.module, log, f"python -m {request.module} {rank}")
    code, terminated = _wait(child)
    if code == 0:
        return
    directory = Path(request.directory)
    if not terminated and not failure.error_file(directory, rank).exists():
        failure.record(directory, rank, failure.ended(code, rank, tail(Path(log))))
    os._exit(code if code > 0 else 1)


def _wait(child: int) -> tuple[int, bool]:
    """Exit code of the rank (negative: a signal), and whether it was terminated on purpose.

    The launcher sends SIGTERM to the whole group, which includes the rank; torchrun sends it to this monitor only, which passes it on. The rank must
    get one SIGTERM only: a second one would end it while it writes its stack traces.
    """
    terminated = False
    while True:
        received = signal.sigwaitinfo(WATCHED)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), terminated
        if received.si_signo == signal.SIGTERM and not terminated:
            terminated = True
            if received.si_pid == os.getppid():
                os.kill(child, signal.SIGTERM)


def _config(request: ForkRequest) -> LaunchConfig:
    where = request.rendezvous
    assert where
    return LaunchConfig(
        min_nodes=where.nodes,
        max_nodes=where.nodes,
        nproc_per_node=len(request.logs),
        logs_specs=DefaultLogsSpecs(log_dir=f"{request.directory}/torchrun"),
        run_id=where.run_id,
        rdzv_backend="static",
        rdzv_endpoint=join_host_port(where.address, where.port),
        rdzv_configs={"rank": where.node_rank, "timeout": where.timeout_seconds},
        max_restarts=0,
        start_method="fork",
        signals_to_handle="SIGTERM",
    )


def _record_lost_monitors(directory: Path, error: ChildFailedError) -> None:
    """Record failures of monitors that were killed themselves, and so wrote nothing."""
    for rank, lost in error.failures.items():
        if not failure.error_file(directory, rank).exists():
            failure.record(directory, rank, failure.ended(lost.exitcode, rank, ""))
