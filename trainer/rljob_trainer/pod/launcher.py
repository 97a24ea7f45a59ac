"""The launcher: follows the operator's control messages, runs the attempts of which this boot is a member, and reports how they ended."""

import asyncio
import contextlib
import logging
import signal
import uuid
from functools import partial
from typing import Literal

from rljob_api.protocol import Control, Report
from rljob_trainer import failure
from rljob_trainer.pod.attempt import Ended, PodAttempt
from rljob_trainer.pod.channel import Channel, ProtocolMismatch, keep_following, keep_reporting
from rljob_trainer.pod.fork_client import ForkServers
from rljob_trainer.pod.read_ahead import ReadAhead
from rljob_trainer.pod.settings import Settings
from rljob_trainer.processes import adopt_orphans, reap

PROGRESS_SECONDS = 2.0
"""Interval of progress reports; a new state is reported at once."""
LAST_REPORT_SECONDS = 5.0
"""Longest wait for the last report before the launcher exits."""

log = logging.getLogger(__name__)


Action = Literal["wait", "stand by", "start", "decline", "follow", "stop"]


class Launcher:
    """`run` until SIGTERM."""

    def __init__(self, channel: Channel, settings: Settings, fork_servers: ForkServers) -> None:
        self._channel, self._settings, self._fork_servers = channel, settings, fork_servers
        self._read_ahead = ReadAhead()
        self._boot_id = uuid.uuid4().hex
        self._report = Report(pod=settings.pod, pod_uid=settings.pod_uid, boot_id=self._boot_id)
        self._news = asyncio.Event()
        self._control: Control | None = None
        self._controlled = True
        """False once the control object was deleted."""
        self._attempt: PodAttempt | None = None
        self._leaving = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Run until SIGTERM, which says that the pod is being deleted. The operator then drains the gang, so the attempt continues until it ends or
        the pod is killed. If the control object was deleted as well, the job is gone and nobody will drain it: the attempt stops at once."""
        adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
        async with asyncio.TaskGroup() as tasks:
            reporting = keep_reporting(self._channel, lambda: self._report, self._news)
            following = keep_following(self._channel, partial(self._hear, tasks), self._refuse)
            parts = [tasks.create_task(part) for part in (following, reporting, self._follow_progress())]
            await self._leaving.wait()
            await self._idle.wait()
            self._read_ahead.stop()
            for part in parts:
                part.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._channel.report(self._report), LAST_REPORT_SECONDS)
        await self._fork_servers.close()

    def _terminate(self) -> None:
        self._leaving.set()
        self._stop_when_deleted()

    def _stop_when_deleted(self) -> None:
        if self._leaving.is_set() and not self._controlled and self._attempt:
            log.info("the job was deleted: stopping attempt %d", self._attempt.number)
            self._attempt.stop()

    async def _hear(self, tasks: asyncio.TaskGroup, control: Control | None) -> None:
        self._controlled = control is not None
        self._stop_when_deleted()
        if control:
            self._control = control
            self._act(tasks)

    def _refuse(self, mismatch: ProtocolMismatch) -> None:
        self._update_report(
            attempt=mismatch.attempt, state="stopped", result="failed", failure=failure.classify(mismatch)
        )

    def _act(self, tasks: asyncio.TaskGroup) -> None:
        """Do what `decide` says. Called for each new control message, and when an attempt has ended."""
        control, attempt = self._control, self._attempt
        assert control
        match decide(control, self._boot_id, self._report.attempt, attempt is not None):
            case "start" if not self._leaving.is_set():
                tasks.create_task(self._run_attempt(control, tasks))
            case "stand by":  # as a spare, which may have to be rank 0, where the driver is
                tasks.create_task(self._fork_servers.warm(driver=True))
                self._read_ahead.start(control.spec)
            case "decline":
                self._update_report(
                    attempt=control.attempt, state="stopped", result="stopped", failure=None, progress=None
                )
            case "follow" if attempt:
                attempt.apply_control(control)
            case "stop" if attempt:
                attempt.stop()

    async def _run_attempt(self, control: Control, tasks: asyncio.TaskGroup) -> None:
        """Run one attempt, and report its start and end."""
        member = control.member(self._boot_id)
        assert member
        self._attempt = attempt = PodAttempt(control, member, self._settings, self._fork_servers)
        self._idle.clear()
        self._read_ahead.stop()
        gang = control.members_of(member.role)
        log.info("attempt %d begins; node rank %d of %d", control.attempt, member.node_rank, len(gang))
        self._update_report(attempt=control.attempt, state="running", result=None, failure=None, progress=None)
        ended = await attempt.run()
        log.info("attempt %d %s", control.attempt, _sentence(ended))
        self._update_report(state="stopped", result=ended.result, failure=ended.failure, progress=attempt.progress())
        await self._fork_servers.warm(driver=False)
        # after the last await: during one, a control message would start the next attempt before this one has ended
        self._attempt = None
        self._idle.set()
        self._act(tasks)

    async def _follow_progress(self) -> None:
        """Report the progress of the running attempt, and collect orphans that ended."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            progress = self._attempt.progress() if self._attempt else None
            if progress and progress != self._report.progress:
                self._update_report(progress=progress)
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Collect orphans that ended, and leave our own children to the parts that wait for them: an exit code can be read only once."""
        reap(self._fork_servers.pids | (self._attempt.pids if self._attempt else set()))

    def _update_report(self, **news: object) -> None:
        self._report = self._report.model_copy(update=news)
        self._news.set()


def _sentence(ended: Ended) -> str:
    cause = ended.failure
    return ended.result + (f": {cause.exception}: {cause.message}" if cause else "")


def decide(control: Control, boot_id: str, newest: int, running: bool) -> Action:
    """What a launcher does about a control message. Pure.

    decline: this boot is a member of an attempt that was stopped before it started here. follow: pass the message on to the running attempt. An
    attempt that is to drain is started all the same, because members that have started already wait for the others. stand by: others run an attempt.

    Args:
        newest: the last attempt of which this boot was a member; 0: none
        running: whether that attempt still runs
    """
    listed = control.member(boot_id) is not None
    if running:
        return "follow" if listed and control.attempt == newest and control.command != "stop" else "stop"
    if not listed:
        return "stand by" if control.attempt and control.command == "run" else "wait"
    if control.attempt <= newest:
        return "wait"
    return "decline" if control.command == "stop" else "start"
