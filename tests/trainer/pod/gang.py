"""Launchers as processes of their own, told by files, and what they answer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from api.specs import make_spec
from rljob_api import names
from rljob_api.protocol import Control, GangAddress, Member, Report, Resume
from rljob_trainer.machine import free_port
from rljob_trainer.pod.channel import replace

HERE = Path(__file__).parent
TIMEOUT = 600.0
"""Many times what anything takes: it ends a hang, and decides nothing else."""


def wait_for(what: str, probe: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {timeout} s")


class Gang:
    """`nodes` launchers with `processes` ranks each, in `directory`."""

    def __init__(self, directory: Path, nodes: int = 1, processes: int = 1) -> None:
        self.root, self._channel = directory / "run", directory / "channel"
        self.root.mkdir()
        self._channel.mkdir()
        self._port, self.attempt = free_port(), 0
        self.spec = make_spec(
            trainer={"device": "cpu", "nodes": nodes, "processesPerNode": processes},
            checkpoint={"path": str(self.root)},
        )
        self.pods = [f"job-trainer-{i}" for i in range(nodes)]
        self.launchers = {pod: self._launch(directory / pod, pod) for pod in self.pods}

    def _launch(self, work: Path, pod: str) -> subprocess.Popen[bytes]:
        paths = [str(HERE), *(p for p in sys.path if p)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            names.ENV_WORK: str(work),
            names.ENV_POD_NAME: pod,
            names.ENV_POD_UID: f"uid-{pod}",
            names.ENV_POD_IP: "127.0.0.1",
            names.ENV_ROLLOUT_TOKEN: "token",
        }
        arguments = ["launch", "--channel", str(self._channel), "--rank", "rank_program", "--driver", "driver_program"]
        return subprocess.Popen([sys.executable, "-m", "rljob_trainer", *arguments], env=environment)

    def start(self) -> int:
        """Tell all launchers to run the next attempt; its number."""
        self.tell(self.attempt + 1)
        return self.attempt

    def close(self) -> None:
        for launcher in self.launchers.values():
            launcher.kill()
            launcher.wait()

    def tell(self, attempt: int, command: str = "run", boots: list[str] | None = None, **changes: Any) -> None:
        """Publish a control for all launchers' boots, or for these."""
        listed = boots if boots is not None else [self.report(pod).boot_id for pod in self.pods]
        if attempt != self.attempt:
            self.attempt, self._port = attempt, free_port()
        members = [
            Member(pod=pod, pod_uid=f"uid-{pod}", boot_id=boot, node_rank=i, address="127.0.0.1")
            for i, (pod, boot) in enumerate(zip(self.pods, listed, strict=True))
        ]
        control = Control(
            name="job",
            namespace="default",
            job_uid="uid",
            attempt=attempt,
            command=command,
            members=members,
            gangs={names.ROLE_TRAINER: GangAddress(address="127.0.0.1", master_port=self._port)},
            resume=Resume(policy="auto"),
            spec=self.spec,
        )
        replace(self._channel / names.CONTROL_KEY, control.model_copy(update=changes).dump_json())

    def forget(self) -> None:
        """The job is deleted: its control message goes first."""
        (self._channel / names.CONTROL_KEY).unlink()

    def order(self, who: str, word: str) -> None:
        replace(self.root / who, word)

    def finish(self, attempt: int) -> None:
        (self.root / f"finish-{attempt}").touch()

    def log(self, attempt: int, who: str) -> str:
        return (self.root / "logs" / f"attempt-{attempt}" / f"{who}.log").read_text()

    def report(self, pod: str) -> Report:
        file = self._channel / f"{names.report(pod)}.json"
        wait_for(f"report of {pod}", file.exists)
        return Report.model_validate_json(file.read_text())

    def pid(self, attempt: int, who: int | str) -> int:
        file = self.root / f"pid-{attempt}-{who}"
        wait_for(f"process {who} of attempt {attempt}", lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def stopped(self, pod: str, attempt: int) -> Report:
        """The report of the attempt's end."""

        def ended() -> Report | None:
            report = self.report(pod)
            return report if report.attempt == attempt and report.state == "stopped" else None

        return wait_for(f"end of attempt {attempt} on {pod}", ended)


def alive(pid: int) -> bool:
    """Whether there is such a process; a zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or before it was read
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
