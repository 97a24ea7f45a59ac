"""Show one job on one page: state, roles, metrics, checkpoints, last failure with its root cause, last events."""

import argparse
from datetime import datetime

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.printers import raw, status


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    job = cluster.job(args.name)
    if args.output:
        print(raw.render(raw.without_managed_fields(job.raw), args.output))
    else:
        print(status.page(job, cluster.events(job), now))
    return 0
