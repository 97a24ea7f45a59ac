"""What the gateway says of itself: its report, as all pods of a job write one."""

import asyncio
import os
import time
import uuid
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Report, ServiceReport
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.textfile import replace
from rljob_trainer.wire.launcher_files import report_file

REPORT_SECONDS = 0.5


def service_report(service: GatewayService, samples: Samples, now: float) -> ServiceReport:
    """`now`: by the monotonic clock."""
    tally, limit = service.desk.tally, service.spec.idle_seconds
    waiting = samples.waiting + sum(book.line.waiting for book in service.books.values())
    return ServiceReport(
        clients=len(service.names.sessions),
        models=sum(not book.line.failed for book in service.books.values()),
        waiting=waiting,
        idle=limit is not None and not waiting and now - tally.active >= limit,
        attempt=tally.attempt,
        answered=tally.answered,
        trained_tokens=tally.trained_tokens,
        sampled_tokens=tally.sampled_tokens,
    )


async def keep_reporting(channel: Path, service: GatewayService, samples: Samples) -> None:
    """Write every change of the report into the channel's directory, until cancelled."""
    pod, boot, written = os.environ[names.ENV_POD_NAME], uuid.uuid4().hex, None
    while True:
        said = service_report(service, samples, time.monotonic())
        if said != written:
            written = said
            report = Report(pod=pod, pod_uid=os.environ[names.ENV_POD_UID], boot_id=boot, state="running", service=said)
            replace(report_file(channel, pod), report.dump_json())
        await asyncio.sleep(REPORT_SECONDS)
