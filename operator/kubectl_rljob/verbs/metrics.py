"""Draw a job's curves: reward, loss and seconds per step, from the points that its status keeps.

`-o png` writes an image and needs matplotlib; `-o json` prints the points. All metrics of all steps are in metrics.jsonl and
TensorBoard files under spec.checkpoint.path.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.printers import curves


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    parser.add_argument(
        "-o", "--output", choices=("json", "png"), help="points, or an image, instead of a terminal's curves"
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="where `-o png` writes (default: NAME.png)")


def run(args: argparse.Namespace, now: datetime) -> int:
    job = Cluster.connect(args.kubeconfig, args.context, args.namespace).job(args.name)
    history = job.status.progress.history
    if args.output == "json":
        print(json.dumps([point.dump() for point in history], indent=4))
    elif not history:
        raise UserError(f"{job.title} has not finished a step yet", job.command("status"))
    elif args.output == "png":
        path = args.file or Path(f"{job.name}.png")
        curves.image(job.name, history, path)
        print(f"{path} written")
    else:
        print(curves.screen(history))
    return 0
