"""The processes of a job on one machine: in place of each pod one launcher, supervisor or gateway, which talk to us by files.

`LocalServer` does what the operator does for servers of several pods (policies/servers.py there), without nodes.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_api.manifest import ManifestError
from rljob_api.protocol import Control, Report
from rljob_api.server_group import ServerGroup, ServerPart
from rljob_api.text import http_url
from rljob_trainer.local.manifest import Job
from rljob_trainer.machine import free_port, is_free
from rljob_trainer.processes import adopt_orphans, kill_group, sweep, tied
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.launcher_files import report_file

KEY = "tml-anything"
"""A key as the SDK wants it to look, where the service asks for none."""
GOODBYE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
Reports = Mapping[str, Report | None]
"""The latest report of each pod; None where there is none."""


@dataclass(frozen=True)
class Gateway:
    """Where a job's gateway is."""

    address: str
    port: int
    """For clients."""
    work_port: int
    """For the driver."""
    needs_key: bool

    @staticmethod
    def of(job: Job, address: str, port: int) -> "Gateway | None":
        """`port`: for clients; 0: any. None: the job is no service. Raises ManifestError when the port is taken."""
        if job.spec.task != "service":
            return None
        if port and not is_free(port):
            raise ManifestError(f"port {port} is taken: choose another one with --port, or 0 for any")
        return Gateway(address, port or free_port(), free_port(), job.spec.service.keys is not None)

    @property
    def command(self) -> tuple[str, ...]:
        return "gateway", "--port", str(self.port), "--work-port", str(self.work_port)

    @property
    def work_url(self) -> str:
        return http_url(self.address, self.work_port)

    @property
    def invitation(self) -> str:
        """How a script finds the service."""
        key = "one of the keys in spec.service.keys" if self.needs_key else KEY
        return (
            f"clients find it at {http_url(self.address, self.port)} as soon as its model is loaded; start your script with\n"
            f"    TINKER_BASE_URL={http_url(self.address, self.port)} TINKER_API_KEY={key}"
        )


class Processes:
    """One per pod, by its name. Use as a context: at its end none of them, nor anything that they started, lives, and their temporary files are
    deleted."""

    def __init__(self, work: Path, job: str, address: str) -> None:
        """`address`: where the processes find each other."""
        self._work, self._job, self._address = work, job, address
        self._channel = work / "channel"
        self._scratch = ""
        """Their TMPDIR. Names of sockets in it may have 107 characters, so it is not below `work`."""
        self._token = secrets.token_hex(16)
        self._commands: dict[str, tuple[str, ...]] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        adopt_orphans()
        shutil.rmtree(self._channel, ignore_errors=True)  # a former run's messages
        self._channel.mkdir(parents=True)
        self._scratch = tempfile.mkdtemp(prefix="rljob-")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GOODBYE_SECONDS
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(process.pid, signal.SIGKILL)
                process.wait()
        sweep(set())
        shutil.rmtree(self._scratch, ignore_errors=True)

    def add(self, pod: str, environment: dict[str, str], *arguments: str) -> None:
        """Start `python -m rljob_trainer ARGUMENTS`. `environment`: what this pod alone has."""
        self._environments[pod] = environment
        self._commands[pod] = tied("rljob_trainer", *arguments, "--channel", str(self._channel))
        self._start(pod)

    def restart(self) -> None:
        """Start again whatever ended, as a kubelet would; each start is a new boot."""
        for pod, process in list(self._running.items()):
            if process.poll() is not None:
                report_file(self._channel, pod).unlink(missing_ok=True)
                self._start(pod)

    def write_control(self, control: Control) -> None:
        replace(self._channel / names.CONTROL_KEY, control.dump_json())

    def report(self, pod: str) -> Report | None:
        text = read_text(report_file(self._channel, pod))
        return Report.model_validate_json(text) if text else None

    def log(self, pod: str) -> Path:
        return self._work / f"{pod}.log"

    def _start(self, pod: str) -> None:
        environment = os.environ | self._environments[pod]
        environment |= {
            "TMPDIR": self._scratch,
            names.ENV_JOB: self._job,
            names.ENV_POD_NAME: pod,
            names.ENV_POD_UID: uuid.uuid4().hex,
            names.ENV_POD_IP: self._address,
            names.ENV_WORK: str(self._work / pod),
            names.ENV_ROLLOUT_TOKEN: self._token,
        }
        with self.log(pod).open("ab") as log:
            self._running[pod] = subprocess.Popen(
                self._commands[pod],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@dataclass(frozen=True)
class LocalServer:
    """One server."""

    name: str
    pods: tuple[str, ...]
    """By rank."""
    generation: int = 0
    group: ServerGroup | None = None
    """Its parts in this generation; None: it has ended, and not all pods are there for the next."""

    def advance(self, seen: Reports, address: str, port: Callable[[], int]) -> "LocalServer":
        """The next state. All parts start again when one of them has failed, or its launcher has. `port`: a free one."""
        reports = [seen.get(pod) for pod in self.pods]
        if self.group and _runs(self.group, reports):
            return self
        there = [report for report in reports if report]
        if len(there) < len(self.pods):
            return LocalServer(self.name, self.pods, self.generation)
        parts = [
            ServerPart(pod=r.pod, pod_uid=r.pod_uid, boot_id=r.boot_id, address=address, node_rank=rank)
            for rank, r in enumerate(there)
        ]
        following = self.generation + 1
        group = ServerGroup(name=self.name, generation=following, parts=parts, master_port=port(), rpc_port=port())
        return LocalServer(self.name, self.pods, following, group)


def _runs(group: ServerGroup, reports: Sequence[Report | None]) -> bool:
    """A part that failed in an earlier generation may be reported late, and until the pod serves again."""
    return all(
        report and report.boot_id == part.boot_id and report.failed_generation != group.generation
        for part, report in zip(group.parts, reports, strict=True)
    )
