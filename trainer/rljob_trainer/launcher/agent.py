"""torchrun's agent for one attempt: static rendezvous with the other nodes, one warden per local rank (see warden.py)."""

import logging
import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rljob_api.address import join_host_port
from rljob_trainer import failure
from rljob_trainer.launcher.order import Order
from rljob_trainer.launcher.processes import die_with_parent
from rljob_trainer.launcher.warden import guard


def run(order: Order) -> int:
    """The exit code: 0 when every local rank ended with 0, else 1, and then some process of the attempt has said why.

    Called once, in a process of its own that leads a session, so that the launcher can kill all of it.
    """
    os.setsid()
    die_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order.environment)
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # says in ten lines what wardens say in one
    directory = Path(order.directory)
    try:
        elastic_launch(_config(order), guard)(order)
    except ChildFailedError as error:
        _record_lost_wardens(directory, error)
    except SignalException:
        return 1
    except Exception as error:
        failure.write(directory, "agent", error)
    else:
        return 0
    return 1


def _config(order: Order) -> LaunchConfig:
    where = order.rendezvous
    assert where
    return LaunchConfig(
        min_nodes=where.nodes,
        max_nodes=where.nodes,
        nproc_per_node=len(order.logs),
        logs_specs=DefaultLogsSpecs(log_dir=f"{order.directory}/torchrun"),
        run_id=where.run_id,
        rdzv_backend="static",
        rdzv_endpoint=join_host_port(where.address, where.port),
        rdzv_configs={"rank": where.node_rank, "timeout": where.timeout_seconds},
        max_restarts=0,
        start_method="fork",
        signals_to_handle="SIGTERM",
    )


def _record_lost_wardens(directory: Path, error: ChildFailedError) -> None:
    """A warden that was killed itself could not say so."""
    for rank, lost in error.failures.items():
        if not failure.error_file(directory, rank).exists():
            failure.record(directory, rank, failure.ended(lost.exitcode, rank, ""))
