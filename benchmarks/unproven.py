"""`python -m rljob_trainer` without the rules that a family generates, and that `rollout.exact` is offered, only where it is proven:
for benchmarks that are to prove it on a GPU.

    python -m benchmarks.unproven run MANIFEST

Ranks and servers are processes of their own, and each of them checks the rules: Python lifts them wherever it starts (lifted/sitecustomize.py).
"""

import os
import sys
from pathlib import Path

PRODUCT = ("-m", "benchmarks.unproven")
"""In place of `-m rljob_trainer`."""
LIFTED = Path(__file__).with_name("lifted")


def environment() -> dict[str, str]:
    """This process's, with the rules lifted in all that get it."""
    paths = [str(LIFTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    command = [sys.executable, "-m", "rljob_trainer", *sys.argv[1:]]
    os.execve(sys.executable, command, environment())
