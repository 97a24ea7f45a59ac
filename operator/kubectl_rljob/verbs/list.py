"""List jobs: state, step, reward, ready trainer pods, restarts, age."""

import argparse
import sys
from datetime import datetime

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.printers import jobs, raw


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of all namespaces")
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    found = cluster.jobs(args.all_namespaces)
    if args.output:
        items = [raw.without_managed_fields(job.raw) for job in found]
        print(raw.render({"apiVersion": "v1", "kind": "List", "items": items}, args.output))
    elif found:
        print(jobs.screen(found, now, args.all_namespaces))
    else:
        print(
            "No rljobs found" + ("." if args.all_namespaces else f" in namespace {cluster.namespace}."), file=sys.stderr
        )
    return 0
