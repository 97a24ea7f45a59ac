"""List the complete checkpoints of a job that are kept, oldest first."""

import argparse
import sys
from datetime import datetime

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.printers import checkpoints, raw


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    job = cluster.job(args.name)
    kept = job.status.checkpoint.kept
    if args.output:
        print(raw.render([c.dump() for c in kept], args.output))
    elif kept:
        print(checkpoints.screen(kept, now))
    else:
        print(f"No complete checkpoints of {job.title} yet.", file=sys.stderr)
    return 0
