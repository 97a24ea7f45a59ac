"""Check a manifest: ranks, layout, batches, pods, GPUs, memory, placement on the cluster as it is now, and every broken rule at once.

Exit code 1 when a rule is broken.
"""

import argparse
from datetime import datetime
from typing import Any

from kubectl_rljob import manifest
from kubectl_rljob.cluster import Cluster
from kubectl_rljob.planning import Plan
from kubectl_rljob.preview import preview
from kubectl_rljob.printers import plan, raw


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        required=True,
        metavar="FILE",
        help="manifest with one or more RLJobs; - reads standard input",
    )
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="Hugging Face directory: checks heads and layers of its config.json too, and estimates memory per GPU",
    )
    parser.add_argument("--offline", action="store_true", help="do not ask the cluster where the pods would go")
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    config = manifest.model_config(args.model) if args.model else None
    plans = [Plan.of(m.name, m.spec, config) for m in manifest.read(args.filename)]
    previews = [preview(p, lambda: _read(args), args.offline) for p in plans]
    if args.output:
        pairs = zip(plans, previews, strict=True)
        print(raw.render([p.dump() | {"placement": found.dump()} for p, found in pairs], args.output))
    else:
        print("\n\n".join(plan.page(p, found) for p, found in zip(plans, previews, strict=True)))
    return 1 if any(p.violations for p in plans) else 0


def _read(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cluster = Cluster.connect(args.kubeconfig, args.context, args.namespace)
    return cluster.everything("nodes"), cluster.everything("pods")
