"""Follow one job: on a terminal its status page, drawn again as it changes; elsewhere a line per change. Ends when the job has.

Exit code 1 when the job has failed.
"""

import argparse
import sys
import time
from datetime import UTC, datetime

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.job import Job
from kubectl_rljob.printers import status

CLEAR = "\x1b[H\x1b[2J"
LONGEST = 3600
ENDED = ("Succeeded", "Failed")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="SECONDS", help="between two looks (default: 2)"
    )


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most {LONGEST} seconds")
    return value


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    show = _page if sys.stdout.isatty() else _line
    shown = ""
    while True:
        job = cluster.job(args.name)
        if (text := show(cluster, job)) != shown:
            print((CLEAR if show is _page else "") + text, flush=True)
            shown = text
        if job.status.state in ENDED:
            return int(job.status.state == "Failed")
        time.sleep(args.interval)


def _page(cluster: Cluster, job: Job) -> str:
    return status.page(job, cluster.events(job), datetime.now(UTC))


def _line(_: Cluster, job: Job) -> str:
    """Without times, so that it changes only with the job."""
    s, p = job.status, job.status.progress
    reward = f"reward {p.history[-1].reward:.3f}" if p.history else ""
    words = s.message.split("\n")[0]
    return "   ".join(
        part for part in (s.state, p.text, reward, p.phase if s.state == "Running" else "", words) if part
    )
