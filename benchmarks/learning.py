"""Does the example learn? Three seeds of model, data and sampling, each with the product's own command on this machine.

    python -m benchmarks.learning [SEEDS]

Prints, per seed, the mean reward of the first and last 10 steps and greedy held-out accuracy before and after. Exits 1 when a seed rose by
less than 0.2.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from e2e.job import EXAMPLES, example, series

REQUIRED_RISE = 0.2


def main(seeds: int) -> int:
    print("seed   reward first 10   last 10    rise   held-out before   after")
    rises = [learn(seed) for seed in range(seeds)]
    return int(min(rises) < REQUIRED_RISE)


def learn(seed: int) -> float:
    """Prepare, train, print a row; the rise of the mean reward."""
    with tempfile.TemporaryDirectory() as scratch:
        data, manifest = Path(scratch) / "data", Path(scratch) / "rljob.yaml"
        manifest.write_text(yaml.safe_dump(example(f"learning-{seed}", data={"seed": seed})))
        call(str(EXAMPLES / "arithmetic" / "prepare.py"), str(data), "--seed", str(seed))
        call("-m", "rljob_trainer", "run", str(manifest), "--mount", f"/data={data}")
        log = (data / "run/metrics.jsonl").read_text()
    rewards, held_out = (list(series(log, name).values()) for name in ("reward/mean", "evaluation/reward"))
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    row = f"{seed:4d} {first:17.3f} {last:9.3f} {last - first:7.3f} {held_out[0]:17.3f} {held_out[-1]:7.3f}"
    print(row, flush=True)
    return last - first


def call(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
