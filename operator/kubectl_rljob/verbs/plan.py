"""Check a manifest without a cluster: ranks, layout, batches, pods, GPUs, and every broken rule at once.

Exit code 1 when a rule is broken.
"""

import argparse
from datetime import datetime

from kubectl_rljob import manifest
from kubectl_rljob.planning import Plan
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
        "--model", metavar="DIR", help="Hugging Face directory: checks heads and layers of its config.json too"
    )
    raw.add_output_flag(parser)


def run(args: argparse.Namespace, now: datetime) -> int:
    config = manifest.model_config(args.model) if args.model else None
    plans = [Plan.of(m.name, m.spec, config) for m in manifest.read(args.filename)]
    if args.output:
        print(raw.render([p.dump() for p in plans], args.output))
    else:
        print("\n\n".join(plan.page(p) for p in plans))
    return 1 if any(p.violations for p in plans) else 0
