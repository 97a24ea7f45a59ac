"""`python -m rljob_trainer.rank.main`: one rank of an attempt, started by torchrun."""

import hashlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rljob_api import names
from rljob_api.protocol import Control, RolloutEndpoint
from rljob_api.sizing.layout import Layout, servers_per_pod
from rljob_api.spec import RLJobSpec
from rljob_trainer import failure
from rljob_trainer.checkpoint.checks import prove_shared
from rljob_trainer.checkpoint.files import write_json
from rljob_trainer.checkpoint.lineage import Run, trained_as
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.data.order import with_steps
from rljob_trainer.megatron import compat
from rljob_trainer.patches import UnsupportedVersionError
from rljob_trainer.rank import loop, nccl
from rljob_trainer.rank.driver_client import DriverClient, heartbeat_of
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.launcher_files import POLL_SECONDS, read_control
from rljob_trainer.wire.weights.transport import transport_of

ASKS_FOR_A_GPU = "fla"
"""flash-linear-attention, which megatron-core and transformers import where it is there: importing it asks the driver for the GPU."""
log = logging.getLogger(__name__)


def prepare() -> None:
    """Import everything that takes seconds. The launcher calls this in the process from which ranks are forked, so nothing may touch a GPU.

    An unsupported package version is ignored here: `main` meets it again, and can report it as the failure of an attempt.
    """
    with suppress(UnsupportedVersionError):
        _import()


def _import() -> None:
    with _hidden(ASKS_FOR_A_GPU):
        compat.install()
        importlib.import_module("rljob_trainer.rank.attempt")
        importlib.import_module("rljob_trainer.rank.role")
        importlib.import_module("rljob_trainer.rank.service")


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Imports of it fail, for which `sys.modules` documents None."""
    modules: dict[str, Any] = sys.modules
    if package in modules:
        yield
        return
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]


def main() -> None:
    """Run the attempt that the environment names. A rank that fails writes the reason into the attempt's directory and exits with 1."""
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s", force=True)
    directory = Path(os.environ[names.ENV_ATTEMPT_DIR])
    try:
        _import()
        result = run(directory)
    except BaseException as error:
        failure.write(directory, rank, error)
        log.exception("rank %d failed", rank)
        os._exit(1)  # destructors of process groups would wait for peers that are gone
    if os.environ["LOCAL_RANK"] == "0":
        write_json(directory / "outcome.json", {"result": result})


def run(directory: Path) -> str:
    """Run one attempt; returns its outcome.

    The process group is destroyed only after the loop has ended well: NCCL then waits for all peers (ncclCommFinalize), and a rank that fails
    must write its reason first.
    """
    control, role = read_control(directory), os.environ.get(names.ENV_ROLE, names.ROLE_TRAINER)
    _join(directory, control, role)
    if role == names.ROLE_TRAINER and control.spec.task == "service":
        from rljob_trainer.rank import service

        result = service.run(directory, control)
    elif role == names.ROLE_TRAINER:
        result = loop.run(_attempt(directory, control))
    else:
        from rljob_trainer.rank import role as gang  # imports megatron, which has to be patched first

        result = gang.run(control, role, os.environ[names.ENV_ROLLOUT_TOKEN])
    dist.destroy_process_group()
    return result


def _join(directory: Path, control: Control, role: str) -> None:
    """Join the default process group. Its collectives fail after the stall timeout."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    gpu = control.spec.trainer.device == "gpu"
    if gpu:
        nccl.choose_queues(Layout.of(control.spec, role))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        nccl.write_channels(directory / f"nccl-{os.environ['RANK']}.log")
    else:  # torch's one flight recorder of all gloo collectives crashes when threads use several groups (read in 2.11)
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    timeout = timedelta(seconds=control.spec.lifecycle.stall_timeout_seconds)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timeout)


def _attempt(directory: Path, control: Control) -> "loop.RankAttempt":
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.memory import MemoryPlan, device_bytes
    from rljob_trainer.rank.attempt import RankAttempt, RankZero  # imports megatron, which has to be patched first
    from rljob_trainer.rank.tasks import objective_of, require_same_files

    ranks = Ranks(control.spec.lifecycle.stall_timeout_seconds)
    store = _open_store(control) if ranks.is_first else None
    prove_shared(Path(control.spec.checkpoint.path), ranks)
    driver = _connect(directory, control) if ranks.is_first else None
    control = _with_steps(control, ranks, driver)
    spec = control.spec
    plan = MemoryPlan.of(spec, device_bytes())
    if ranks.is_first:
        log.info("%s", plan.table({}))
    heartbeat = heartbeat_of(driver)
    senders = None if spec.supervised else _senders(directory, control, ranks, driver, heartbeat)
    objective = objective_of(spec)
    require_same_files(objective, ranks)
    engine = Engine(spec, heartbeat, objective)
    return RankAttempt(control, ranks, engine, senders, RankZero(driver, store, plan) if driver and store else None)


def _with_steps(control: Control, ranks: Ranks, driver: DriverClient | None) -> Control:
    """Replace spec.train.epochs by the number of steps, which the driver computes from the size of the data."""
    if control.spec.train.steps is not None:
        return control
    steps = ranks.broadcast(driver.steps() if driver else None)
    return control.model_copy(update={"spec": with_steps(control.spec, steps)})


def _senders(
    directory: Path, control: Control, ranks: Ranks, driver: DriverClient | None, heartbeat: Callable[[], None]
) -> Senders:
    """The trainer's end of weight updates. Colocated servers sleep when this returns, and the driver knows their addresses."""
    spec, token = control.spec, os.environ[names.ENV_ROLLOUT_TOKEN]
    transport = transport_of(spec, os.environ[names.ENV_POD_IP])

    def publisher() -> Publisher:
        awaits = driver.awaiting if driver else None
        return Publisher(control.attempt, token, transport, awaits, spec.keeps_requests)

    if spec.rollout.placement != "colocated":
        return Senders(ranks, publisher, heartbeat)
    place = int(os.environ["LOCAL_RANK"])
    own = [] if place else wait_for_servers(directory, spec, heartbeat)
    senders = Senders(ranks, publisher, heartbeat, own, ranks.rank - place)
    senders.sleep()
    of_ranks = ranks.gather([server.dump() for server in own])
    if driver:
        driver.colocated([server for servers in of_ranks for server in servers])
    return senders


def wait_for_servers(directory: Path, spec: RLJobSpec, heartbeat: Callable[[], None]) -> list[RolloutEndpoint]:
    """Wait for the colocated servers of this pod, which the launcher adds to the control file once all of them answer.

    This waits without a limit of its own: the launcher ends the attempt when a server fails.
    """
    while True:
        rollouts = read_control(directory).rollouts
        if len(rollouts) >= servers_per_pod(spec):
            return rollouts
        heartbeat()
        time.sleep(POLL_SECONDS)


def _open_store(control: Control) -> Store:
    spec = control.spec
    run = Run(
        job_uid=control.job_uid,
        attempt=control.attempt,
        model=hashlib.sha256((Path(spec.model.path) / "config.json").read_bytes()).hexdigest(),
        chat={"task": spec.task, "chatTemplate": spec.data.chat_template.model_dump(mode="json", by_alias=True)},
        trained=trained_as(spec),
        resume=control.resume,
        resume_from=Path(spec.checkpoint.resume_from) if spec.checkpoint.resume_from else None,
        keep_last=spec.checkpoint.keep_last,
    )
    return Store(Path(spec.checkpoint.path), run)


def _connect(directory: Path, control: Control) -> DriverClient:
    return DriverClient.connect(
        directory / "driver.sock", directory / "error-driver.json", control.spec.lifecycle.stall_timeout_seconds
    )


if __name__ == "__main__":
    main()
