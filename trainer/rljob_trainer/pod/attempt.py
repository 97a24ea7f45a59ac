"""One attempt on this pod: directories, ranks, colocated servers and, on node rank 0, the driver. When it ends, none of its processes is left."""

import asyncio
import json
import logging
import shutil
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control, Failure, Member, Progress, Result
from rljob_api.rules.engine import Violation
from rljob_api.spec import RLJobSpec
from rljob_trainer import failure, model_files
from rljob_trainer.checkpoint import exports
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.machine import memory_limit, oom_kills
from rljob_trainer.pod.colocated import ColocatedServers
from rljob_trainer.pod.fork_client import PROCESS, ForkServer, ForkServerLost, ForkServers, obtain
from rljob_trainer.pod.fork_server import ForkRequest, Rendezvous
from rljob_trainer.pod.logs import Follower, tail
from rljob_trainer.pod.settings import Settings
from rljob_trainer.processes import sweep
from rljob_trainer.textfile import read_text, replace

GOODBYE_SECONDS = 10.0
"""Longest wait for the end of the driver, after the ranks have ended well."""
DRIVER_CAUSE_SECONDS = 0.5
"""Longest wait for the driver's error file, when the ranks only report that they lost a peer."""
SERVER_CAUSE_SECONDS = 15.0
"""Longest wait for the health check to report a dead server (pod/health.py, pod/server_process.py), which takes 4 s on an idle machine."""
STOP_SECONDS = 2.0
"""Between SIGTERM, on which processes write their stack traces, and SIGKILL, for those that use no GPU."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """How an attempt ended on this pod."""

    result: Result
    failure: Failure | None = None


class PodAttempt:
    """Call `run` once; `apply_control` and `stop` may be called meanwhile."""

    def __init__(self, control: Control, member: Member, settings: Settings, fork_servers: ForkServers) -> None:
        self.number = control.attempt
        self._control, self._member, self._settings, self._fork_servers = control, member, settings, fork_servers
        self._directory = settings.directory(control.attempt)
        self._root = Path(control.spec.checkpoint.path)
        self._stop = asyncio.Event()
        self._servers = ColocatedServers(control, settings.environment)
        self._oom_kills = oom_kills()

    @property
    def pids(self) -> set[int]:
        """Children of the launcher that this attempt waits for."""
        return self._servers.pids

    @property
    def _trains(self) -> bool:
        return self._member.role == names.ROLE_TRAINER

    @property
    def _leads(self) -> bool:
        """Whether the driver runs on this pod."""
        return self._trains and self._member.node_rank == 0

    async def run(self) -> Ended:
        """Run the attempt. When this returns, none of its processes is left."""
        try:
            return await self._run_steps()
        except Exception as error:  # a volume that is away, a process that the kernel does not start, a file with text where a number belongs
            log.exception("attempt %d", self.number)
            await asyncio.to_thread(sweep, self._fork_servers.pids)
            return Ended("failed", failure.classify(error))

    async def _run_steps(self) -> Ended:
        try:
            await asyncio.to_thread(self._make_directories)
        except OSError as error:
            return Ended("failed", failure.classify(unwritable(self._control.spec.checkpoint.path, error)))
        with Follower([*self._rank_logs(), *([self._driver_log()] if self._leads else []), self._fetch_log()]):
            return await self._fetch() or await self._check() or await self._run_processes()

    def apply_control(self, control: Control) -> None:
        """Pass a new control message on to the processes, for example to drain, or with other rollouts."""
        if control != self._control:
            self._control = control
            self._write_control()

    def _write_control(self) -> None:
        """Write the control file. The launcher adds the colocated servers of its pod; the operator lists those in pods of their own."""
        known = [*self._control.rollouts, *self._servers.endpoints]
        replace(self._directory / names.CONTROL_KEY, self._control.model_copy(update={"rollouts": known}).dump_json())

    def stop(self) -> None:
        self._stop.set()

    def progress(self) -> Progress | None:
        text = read_text(self._directory / "progress.json")
        return Progress.model_validate_json(text) if text else None

    async def _fetch(self) -> Ended | None:
        """Fetch model and data to the volume. Returns how the attempt ended, if that failed or was stopped."""
        request = self._request(PROCESS, [self._fetch_log()])
        driver = self._fork_servers.driver if self._leads else None
        try:
            if await obtain(self._control.spec, driver, request, self._stop):
                return None
        except ForkServerLost as error:
            failure.record(self._directory, "fork-server", error.as_failure())
        killed = time.time()
        await asyncio.to_thread(sweep, self._fork_servers.pids)
        return Ended(*conclude(None, self._stop.is_set(), self._failures(killed), killed))

    async def _check(self) -> Ended | None:
        """Check model and adapters before anything loads them. Returns how the attempt ended, with all violations, if they do not fit the job."""
        misfits = await asyncio.to_thread(_misfits, self._control.spec) if self._trains else []
        return Ended("failed", failure.misconfigured(misfits)) if misfits else None

    async def _run_processes(self) -> Ended:
        ranks = asyncio.create_task(self._run_ranks())
        driver = asyncio.create_task(self._run_driver()) if self._leads else None
        stop = asyncio.create_task(self._stop.wait())
        servers = asyncio.create_task(self._run_servers()) if self._trains and self._servers.count else None
        announcement = asyncio.create_task(self._announce_servers())
        try:
            ending = await self._until_over(ranks, driver, stop, servers)
        finally:
            for task in (stop, servers, announcement):
                if task:
                    task.cancel()
            killed = time.time()
            await self._kill_all(ranks, driver)
        outcome = self._outcome() if ending == "well" else None
        return Ended(*conclude(outcome, ending == "stopped", self._failures(killed), killed))

    async def _kill_all(self, ranks: asyncio.Task[int], driver: asyncio.Task[int] | None) -> None:
        await _kill(self._fork_servers.ranks, ranks, grace_of(self._control.spec))
        if driver:
            await _kill(self._fork_servers.driver, driver, STOP_SECONDS)
        await self._servers.stop()
        await asyncio.to_thread(sweep, self._fork_servers.pids)

    async def _until_over(
        self,
        ranks: asyncio.Task[int],
        driver: asyncio.Task[int] | None,
        stop: asyncio.Task[bool],
        servers: asyncio.Task[int] | None,
    ) -> str:
        """Wait until the ranks have ended (`well`), any process has failed (`badly`), or `stop` was called (`stopped`). The driver may end before the
        ranks do."""
        awaited: set[asyncio.Task[int] | asyncio.Task[bool]] = {task for task in (ranks, driver, stop, servers) if task}
        while True:
            done, awaited = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done if task is not stop):
                await await_cause(self._directory, driver, servers)
                return "badly"
            if ranks in done:
                await _bounded(driver, GOODBYE_SECONDS)
                return "well"
            if stop in done:
                return "stopped"

    async def _run_ranks(self) -> int:
        """Returns the exit code. Unless it is a signal, ranks or monitors have written why they failed."""
        code = await self._run(
            self._fork_servers.ranks, self._request(self._settings.rank, self._rank_logs(), self._rendezvous())
        )
        if code < 0:
            failure.record(self._directory, "agent", failure.ended(code, None, ""))
        return code

    async def _run_driver(self) -> int:
        code = await self._run(self._fork_servers.driver, self._request(self._settings.driver, [self._driver_log()]))
        if code and not failure.error_file(self._directory, "driver").exists():
            failure.record(self._directory, "driver", failure.ended(code, None, tail(self._driver_log())))
        return code

    async def _run_servers(self) -> int:
        failure.record(self._directory, failure.SERVER, await self._servers.run())
        return 1

    async def _announce_servers(self) -> None:
        """Write the colocated servers into the control file as soon as all answer."""
        await self._servers.answering.wait()
        self._write_control()

    async def _run(self, fork_server: ForkServer, request: ForkRequest) -> int:
        try:
            await fork_server.ready()
            return await fork_server.run(request)
        except ForkServerLost as error:
            failure.record(self._directory, "fork-server", error.as_failure())
            return 1

    def _outcome(self) -> Result | None:
        text = read_text(self._directory / "outcome.json")
        return json.loads(text)["result"] if text else None

    def _failures(self, before: float) -> list[Failure]:
        kills, limit = oom_kills() - self._oom_kills, memory_limit()
        return [failure.with_memory(f, kills, limit) for f in failure.read(self._directory) if f.time <= before]

    def _make_directories(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        replace(self._directory / names.CONTROL_KEY, self._control.dump_json())
        names.log_dir(self._root, self.number).mkdir(parents=True, exist_ok=True)

    def _rank_logs(self) -> list[Path]:
        role = self._member.role
        processes = self._control.spec.processes_of(role)
        first = self._member.node_rank * processes
        return [names.rank_log(self._root, self.number, rank, role) for rank in range(first, first + processes)]

    def _driver_log(self) -> Path:
        return names.driver_log(self._root, self.number)

    def _fetch_log(self) -> Path:
        return names.log_dir(self._root, self.number) / "fetch.log"

    def _request(self, module: str, logs: list[Path], rendezvous: Rendezvous | None = None) -> ForkRequest:
        environment = {names.ENV_ATTEMPT_DIR: str(self._directory), names.ENV_ROLE: self._member.role}
        return ForkRequest(module, str(self._directory), [str(log) for log in logs], environment, rendezvous)

    def _rendezvous(self) -> Rendezvous:
        control, role = self._control, self._member.role
        gang = control.gangs[role]
        return Rendezvous(
            run_id=f"{control.job_uid}-{control.attempt}-{role}",
            nodes=len(control.members_of(role)),
            node_rank=self._member.node_rank,
            address=gang.address,
            port=gang.master_port,
            timeout_seconds=control.spec.lifecycle.stall_timeout_seconds,
        )


def grace_of(spec: RLJobSpec) -> float:
    """Seconds between SIGTERM and SIGKILL for ranks."""
    return float(spec.lifecycle.rank_grace_seconds) if spec.trainer.device == "gpu" else STOP_SECONDS


async def _kill(fork_server: ForkServer, task: asyncio.Task[int], grace: float) -> None:
    """End what the fork server has forked for `task`, and wait for it. A fork server that is still importing has forked nothing, and lives on.

    `grace`: seconds between SIGTERM and SIGKILL.
    """
    if not fork_server.busy:
        task.cancel()
    if not task.done():
        fork_server.kill(signal.SIGTERM)
        await asyncio.wait({task}, timeout=grace)
    await fork_server.kill_until_ended(task)


async def await_cause(directory: Path, driver: asyncio.Task[int] | None, servers: asyncio.Task[int] | None) -> None:
    """When a rank reports only a symptom, wait for the process that may be the cause to report its own failure: the driver, or, if the rank lost a
    colocated server, that server."""
    cause = failure.read_first(directory)
    if cause and cause.exception in failure.SEEN_OF_SERVERS:
        await _bounded(servers, SERVER_CAUSE_SECONDS)
    elif cause is None or cause.kind == "collective":
        await _bounded(driver, DRIVER_CAUSE_SECONDS)


async def _bounded(task: asyncio.Task[int] | None, seconds: float) -> None:
    if task:
        await asyncio.wait({task}, timeout=seconds)


def _misfits(spec: RLJobSpec) -> list[Violation]:
    """Of the files of model and adapters. An export that is gone has none."""
    return exports.violations(spec) or model_files.violations(spec)


def unwritable(path: str, error: OSError) -> Exception:
    """What to report when an attempt cannot make its directories: `error` itself if the volume is away or full, else a ConfigurationError."""
    if failure.is_outage(error) or failure.is_full(error):
        return error
    rule = f"the trainer cannot write there: {error.strerror}: {error.filename}"
    return ConfigurationError(
        "spec.checkpoint.path", path, rule, "mount a volume there that all trainer pods can write to"
    )


def conclude(
    outcome: Result | None, stopped: bool, failures: Iterable[Failure], now: float
) -> tuple[Result, Failure | None]:
    """The result of an attempt, with the cause of its failure.

    Args:
        outcome: what the ranks wrote, when all of them ended with 0
        stopped: the attempt was stopped before any of its processes had ended
        failures: those that its processes reported before any was killed. In a stopped attempt, lost peers are a consequence of the stop
        now: seconds since the epoch
    """
    if outcome:
        return outcome, None
    cause = failure.first(failures)
    if stopped and (cause is None or cause.kind == "collective"):
        return "stopped", None
    return "failed", cause or Failure(kind="application", message="the ranks ended without an outcome", time=now)
