"""The loop of `run`: read the reports, decide, write the control message, print one line per change."""

import shlex
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from rljob_api import names
from rljob_api.manifest import ManifestError
from rljob_api.protocol import Command, Control, Failure, GangAddress, Report, Resume, RolloutEndpoint
from rljob_api.spec.processes import Servers
from rljob_api.text import http_url
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.decide import JobEnd, LocalState, Seen, advance
from rljob_trainer.local.earlier import Earlier, Waits, last_attempt, remember_rewards
from rljob_trainer.local.manifest import Job, assign_gpus, load
from rljob_trainer.local.occupied import CHECKPOINTS, WORK, occupying
from rljob_trainer.local.processes import Gateway, LocalServer, Processes
from rljob_trainer.local.progress import (
    Display,
    Evaluations,
    continued,
    failures,
    restarted,
    running,
    status_line,
    summary,
    warnings,
)
from rljob_trainer.machine import free_port, gpus, loopback
from rljob_trainer.pod.settings import DRIVER, RANK

POLL_SECONDS = 0.2
FAILED, INTERRUPTED = 1, 130
DRAINING = "finishing the step and saving it; the same again stops at once"
STOPPING = "stopping"


def run(
    manifest: Path,
    mounts: list[str],
    work: Path | None,
    rank: str = RANK,
    driver: str = DRIVER,
    settings: Sequence[str] = (),
    port: int = names.GATEWAY_PORT,
) -> int:
    """With `settings` put into the spec; `port`: of a service, 0: any. The exit code: 0 succeeded, 1 failed, with the cause in one message, 130
    interrupted, after a drain."""
    with ExitStack() as held:
        try:
            job = load(manifest, mounts, settings)
            root = Path(job.spec.checkpoint.path)
            held.enter_context(occupying(job.name, CHECKPOINTS, root))
            if _is_over(job):
                return 0
            here = Here(job, port)
            if work and work.resolve() != root.resolve():
                held.enter_context(occupying(job.name, WORK, work))
            remember_rewards(job.spec)
        except (ManifestError, ConfigurationError) as error:
            print(error, file=sys.stderr)
            return 1
        return _to_its_end(here, job, work, rank, driver, shlex.join(again(manifest, mounts, settings)))


def _to_its_end(here: "Here", job: Job, work: Path | None, rank: str, driver: str, again: str) -> int:
    """The exit code. `again`: the command that continues the run."""
    logs, kept = (work, "") if work else (Path(tempfile.mkdtemp(prefix=f"rljob-{job.name}-")), ", kept if it fails")
    print(
        f"{job.name}: logs of its processes are in {logs}{kept}, those of its ranks in {job.spec.checkpoint.path}/logs"
    )
    end = here.run(logs.resolve(), rank, driver, again)
    if not work and end.code != FAILED:
        shutil.rmtree(logs, ignore_errors=True)
    print(f"{job.name}: {end.message}", file=sys.stderr if end.code else sys.stdout)
    return end.code


def _is_over(job: Job) -> bool:
    """Say what an earlier run has left, and whether that is everything. Raises ConfigurationError."""
    earlier = Earlier.of(job.spec)
    for line in earlier.lines() if earlier else ():
        print(f"{job.name}: {line}")
    return earlier is not None and earlier.leaves_nothing


def again(manifest: Path, mounts: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The command that continues a run."""
    options = [("--mount", mount) for mount in mounts] + [("--set", setting) for setting in settings]
    return ["python", "-m", "rljob_trainer", "run", str(manifest), *chain.from_iterable(options)]


class Here:
    """One job on this machine."""

    def __init__(self, job: Job, port: int) -> None:
        """`port`: of a service, 0: any. Raises ManifestError when the machine lacks GPUs, or the port is taken."""
        self._job, self._spec = job, job.spec
        self._uid = uuid.uuid4().hex
        self._address = loopback()
        counts = {**self._spec.pod_counts, **self._spec.gang_sizes}  # here there are no spares
        self._pods = {
            role: [names.pod(job.name, role, i) for i in range(count)]
            for role, count in counts.items()
            if role != names.ROLE_GATEWAY and not names.is_sandbox_role(role)
        }
        self._ports = {pod: free_port() for role, pods in self._servers() for pod in pods}
        self._gpus = assign_gpus(self._spec, self._pods, gpus())
        self._replicas = [server for role, pods in self._servers() for server in self._replicas_of(role, pods)]
        self._gateway = Gateway.of(job, self._address, port)
        self._attempt_ports: dict[tuple[int, str], int] = {}
        root = Path(job.spec.checkpoint.path)
        self._state = LocalState(before=last_attempt(root))
        self._wanted: Command = "run"
        self._written: Control | None = None
        self._display, self._waits = Display(sys.stdout), Waits(job.spec)
        self._warned: list[str] = []
        self._failed: dict[str, Failure] = {}
        """What was said of servers, by pod."""
        self._metrics = names.metrics_file(root)
        self._evaluations = Evaluations(self._metrics)

    def run(self, work: Path, rank: str, driver: str, again: str) -> JobEnd:
        """Ctrl-C and SIGTERM drain; the second one stops. `again`: the command that continues."""
        self._processes = Processes(work, self._job.name, self._address)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        with self._processes as processes:
            for pod in (pod for role, pods in self._launchers() for pod in pods):
                processes.add(pod, self._gpus[pod], "launch", "--rank", rank, "--driver", driver)
            for role, pods in self._servers():
                command = (
                    (role,)
                    if role == names.ROLE_ROLLOUT
                    else ("worker" if names.is_worker_role(role) else "pool", role)
                )
                for pod in pods:
                    processes.add(pod, self._gpus[pod], *command, "--port", str(self._ports[pod]))
            if self._gateway:
                processes.add(names.pod(self._job.name, names.ROLE_GATEWAY, 0), {}, *self._gateway.command)
                print(self._gateway.invitation)
            while True:
                seen = self._see()
                for text in self._evaluations.new():
                    self._display.say(text)
                following = advance(self._state, seen, self._wanted, self._spec.lifecycle.max_restarts)
                if isinstance(following, JobEnd):
                    self._display.end()
                    if following.code == 0:
                        print(summary(seen, self._metrics if self._spec.evaluation.only else None))
                    if following.code == INTERRUPTED:
                        print(f"to go on: {again}" if self._gateway else continued(seen, again))
                    return following
                if following.failures > self._state.failures:
                    self._display.say(restarted(self._state, following, self._spec.lifecycle.max_restarts))
                self._state = following
                self._replicas = [one.advance(seen.servers, self._address, free_port) for one in self._replicas]
                self._write_control(seen)
                self._show(seen)
                time.sleep(POLL_SECONDS)
                processes.restart()

    def _interrupt(self, *_: object) -> None:
        self._wanted, text = ("drain", DRAINING) if self._wanted == "run" else ("stop", STOPPING)
        self._display.say(text)

    def _see(self) -> Seen:
        reports = {role: {pod: self._processes.report(pod) for pod in pods} for role, pods in self._pods.items()}
        trainers, rollouts = reports.pop(names.ROLE_TRAINER), reports.pop(names.ROLE_ROLLOUT, {})
        gangs = {role: reports.pop(role) for role in self._spec.gangs}
        return Seen(trainers, rollouts, self._address, reports, gangs)

    def _servers(self) -> Iterator[tuple[str, list[str]]]:
        """Pods of rollouts, pools and workers."""
        return ((role, pods) for role, pods in self._pods.items() if not names.is_model_role(role))

    def _replicas_of(self, role: str, pods: Sequence[str]) -> list[LocalServer]:
        """Those of a role whose servers have several pods."""
        settings = self._spec.pods[role]
        nodes = settings.nodes if isinstance(settings, Servers) else 1
        if nodes == 1:
            return []
        return [
            LocalServer(names.server(self._job.name, role, i), tuple(pods[i * nodes : (i + 1) * nodes]))
            for i in range(len(pods) // nodes)
        ]

    def _launchers(self) -> Iterator[tuple[str, list[str]]]:
        """Pods of gangs."""
        return ((role, pods) for role, pods in self._pods.items() if names.is_model_role(role))

    def _write_control(self, seen: Seen) -> None:
        """Only what is new."""
        control = self._control(seen)
        if control != self._written:
            self._written = control
            self._processes.write_control(control)

    def _control(self, seen: Seen) -> Control:
        state, spec = self._state, self._spec
        return Control(
            name=self._job.name,
            namespace=self._job.namespace,
            job_uid=self._uid,
            attempt=state.attempt,
            command=state.command,
            members=list(state.members),
            gangs={
                role: GangAddress(address=self._address, master_port=self._port(state.attempt, role))
                for role, _ in self._launchers()
            },
            service_port=self._port(state.attempt, "service") if spec.has_service else 0,
            resume=Resume(policy=spec.checkpoint.resume),
            failed_attempt=state.attempt - 1 if state.failures else 0,
            rollouts=self._answering(seen.rollouts),
            pools={pool.name: self._answering(seen.pools[pool.name]) for pool in spec.asked_pools},
            local=True,
            gateway=self._gateway.work_url if self._gateway else "",
            servers=[one.group for one in self._replicas if one.group],
            spec=spec,
        )

    def _answering(self, servers: Mapping[str, Report | None]) -> list[RolloutEndpoint]:
        followers = {pod for server in self._replicas for pod in server.pods[1:]}
        return [
            RolloutEndpoint(pod=pod, pod_uid=report.pod_uid, url=http_url(self._address, self._ports[pod]))
            for pod, report in servers.items()
            if report and report.state == "running" and pod not in followers
        ]

    def _port(self, attempt: int, purpose: str) -> int:
        """Of its own for each attempt and purpose; several jobs may share a machine."""
        if (attempt, purpose) not in self._attempt_ports:
            self._attempt_ports[attempt, purpose] = free_port()
        return self._attempt_ports[attempt, purpose]

    def _show(self, seen: Seen) -> None:
        for text in warnings(seen):
            if text not in self._warned:
                self._warned.append(text)
                self._display.say(f"warning: {text}")
        for pod, failure in failures(seen).items():
            if failure != self._failed.get(pod):
                self._failed[pod] = failure
                log = self._processes.log(pod)
                self._display.say(f"{pod} ended and starts again, its log is {log}: {failure.sentence}")
        progress = running(self._state, seen)
        begun = progress is not None and progress.started_from is not None and bool(progress.history)
        done = progress.step / progress.steps if progress and begun and progress.steps else None
        now = time.monotonic()
        self._display.show(status_line(self._state, seen), done, now, self._waits.now(progress, now))
