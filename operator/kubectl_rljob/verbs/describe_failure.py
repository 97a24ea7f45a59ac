"""Explain a job's last failure: root cause with its traceback, what it cost, where the logs are, what to do next."""

import argparse
from datetime import datetime
from functools import partial

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import here
from kubectl_rljob.printers import failure, raw


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    job = Cluster.connect(args.kubeconfig, args.context, args.namespace).job(args.name)
    last = job.status.last_failure
    if args.output:
        print(raw.render(last.dump() if last else {}, args.output))
    elif last is None:
        print(f"{job.title} has not failed (state: {job.status.state})")
    else:
        print(failure.screen(job, last, now, partial(here, args=args)))
    return 0
