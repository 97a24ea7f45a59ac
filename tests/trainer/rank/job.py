"""One job as the launcher runs it: the driver's process, and ranks forked from one that has imported everything."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Control, Failure, GangAddress, Progress, Resume, RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import free_port
from rljob_trainer.rank import main as rank
from trainer.server.servers import TOKEN

WORLD, STEPS, SECONDS = 2, 5, 600
MEASURES = ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "critic/loss", "critic/grad_norm")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": {"advantage": "gae", "kl": {"coefficient": 0.1, "where": "reward"}}, "critic": {}},
}


class Job:
    """One job of two ranks in a directory of its own."""

    def __init__(self, material: Path, directory: Path, **changes: Any):
        self.root, self._directory = directory / "run", directory
        self.pools: dict[str, list[RolloutEndpoint]] = {}
        """Servers that the test has started, whose token is servers.TOKEN."""
        self._spec = {
            "model": {"path": str(material / "model"), "dtype": "float32"},
            "data": {"train": [str(material / "train.parquet")]},
            "rewards": [{"rule": "exactMatch"}],
            "algorithm": {"kl": {"coefficient": 0.1}},
            "train": {
                "steps": STEPS,
                "promptsPerStep": 4,
                "samplesPerPrompt": 4,
                "tokensPerMicroBatch": 64,
                "optimizer": {"learningRate": 1e-3},
                "batches": {"replay": str(material / "batches")},
            },
            "trainer": {"device": "cpu", "processesPerNode": WORLD, "parallelism": {"tensor": 2}},
            "rollout": {"replicas": 0},
            "checkpoint": {"path": str(self.root), "everySteps": 2},
            "image": "i",
        } | changes

    def start(self, attempt: int, resume: int | None = None, before: Callable[[int], None] = bool) -> "Running":
        """`before` runs in each rank's process, before the rank does."""
        directory = self._directory / f"attempt-{attempt}"
        directory.mkdir()
        spec = RLJobSpec.model_validate(self._spec)
        for role in spec.gangs:
            (directory / role).mkdir()
        self._service_port = free_port()
        self.tell(attempt, "run", resume)
        return Running(directory, spec, before)

    def tell(self, attempt: int, command: Any, resume: int | None = None) -> None:
        control = Control(
            name="demo",
            namespace="n",
            job_uid="u",
            attempt=attempt,
            command=command,
            gangs={names.ROLE_TRAINER: GangAddress(address="127.0.0.1", master_port=0)},
            service_port=self._service_port,
            pools=self.pools,
            resume=Resume(policy="auto", step=resume),
            spec=self._spec,
        )
        attempt_directory = self._directory / f"attempt-{attempt}"
        for directory in (attempt_directory, *(d for d in attempt_directory.iterdir() if d.is_dir())):
            (directory / "control.tmp").write_text(control.dump_json())
            (directory / "control.tmp").replace(directory / "control.json")

    def losses(self) -> dict[int, list[float]]:
        """Everything that training computed, by step."""
        return {m["step"]: [m[name] for name in MEASURES if name in m] for m in self.metrics() if "train/loss" in m}

    def metrics(self) -> list[dict[str, Any]]:
        return whole_lines(names.metrics_file(self.root))


def whole_lines(file: Path) -> list[dict[str, Any]]:
    """Of a file to which somebody appends: the last one may not be whole yet."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


class Running:
    """The processes of one attempt."""

    def __init__(self, directory: Path, spec: RLJobSpec, before: Callable[[int], None]):
        self._directory = directory
        shared = os.environ | {
            names.ENV_ATTEMPT_DIR: str(directory),
            names.ENV_ROLLOUT_TOKEN: TOKEN,
            names.ENV_POD_IP: "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        self.driver = subprocess.Popen([sys.executable, "-m", "rljob_trainer.driver"], env=shared)
        self.ranks = _fork_gang(spec.trainer.processes_per_node, shared, before)
        self.gangs = {
            role: _fork_gang(gang.processes_per_node, shared | _of_role(directory, role), bool)
            for role, gang in spec.gangs.items()
        }
        """Ranks of the roles that have some of their own."""

    def wait(self) -> list[int]:
        """Exit codes of driver and ranks, and then those of other roles' ranks."""
        others = [rank for ranks in self.gangs.values() for rank in ranks]
        return [self.driver.wait(SECONDS), *(wait_for(rank) for rank in (*self.ranks, *others))]

    def progress(self) -> Progress:
        return Progress.model_validate_json((self._directory / "progress.json").read_text())

    def outcome(self) -> str:
        return json.loads((self._directory / "outcome.json").read_text())["result"]

    def failures(self) -> dict[str, Failure]:
        return {f.stem: Failure.model_validate_json(f.read_text()) for f in self._directory.glob("error-*.json")}


def _of_role(directory: Path, role: str) -> dict[str, str]:
    return {names.ENV_ATTEMPT_DIR: str(directory / role), names.ENV_ROLE: role}


def _fork_gang(count: int, environment: dict[str, str], before: Callable[[int], None]) -> list[int]:
    meeting = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    return [_fork_rank(rank, environment | meeting, before) for rank in range(count)]


def _fork_rank(number: int, environment: dict[str, str], before: Callable[[int], None]) -> int:
    """As the launcher does: from a process that has imported everything."""
    child = os.fork()
    if child:
        return child
    before(number)
    os.environ.update(environment | {"RANK": str(number), "LOCAL_RANK": str(number)})
    code = 1
    try:
        rank.main()
        code = 0
    finally:
        os._exit(code)


def wait_for(child: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a rank did not end")
