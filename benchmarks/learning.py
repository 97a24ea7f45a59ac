"""Does the example learn? Three seeds of model, data and sampling, each with the product's own command on this machine.

    python -m benchmarks.learning [SEEDS] [--example arithmetic|reasoning-gym] [--staleness 0 2] [--steps 60] [--on-host float32 bfloat16]
        [--out FILE]

Prints, per seed and staleness, the mean reward of the first and last 10 steps and the held-out reward before and after. Above 0, responses
continue under the next policy and samples are weighed for their age. `--on-host`: optimizer steps are taken there (`trainer.offload.update`), with
moments of these types in turn. Exits 1 when a run rose by less than `RISES`. FILE gets a line of JSON for each run: the mean reward of every step,
and the held-out accuracy where it was measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from e2e.job import EXAMPLES, example, merge, series

RISES = {"arithmetic": 0.2, "reasoning-gym": 0.05}
"""The least rise of the mean reward, by example."""
RUNS = {"arithmetic": "run", "reasoning-gym": "reasoning-gym/run"}
"""By example: the run below its data."""
SECONDS = 4 * 3600
"""For one command: minutes on a quiet machine, and at idle priority on a busy one hours."""


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.learning")
    parser.add_argument("seeds", type=int, nargs="?", default=3)
    parser.add_argument("--example", choices=sorted(RUNS), default="arithmetic")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--on-host", nargs="*", default=[""], choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print("seed staleness   reward first 10   last 10    rise   held-out before   after   age   effective")
    kinds = product(range(options.seeds), options.staleness, options.on_host)
    rises = [learn(options.example, *kind, options.steps, options.out) for kind in kinds]
    return int(min(rises) < RISES[options.example])


def ahead(staleness: int) -> dict[str, Any]:
    """Sections of the spec."""
    if not staleness:
        return {}
    correction = {"rolloutCorrection": {"importanceSampling": "token"}}
    return {"algorithm": correction, "rollout": {"interrupt": "continue"}}


def moments(dtype: str) -> dict[str, Any]:
    """Sections of the spec: optimizer steps on the host."""
    return {"train": {"optimizer": {"momentsDtype": dtype}}, "trainer": {"offload": {"update": True}}} if dtype else {}


def learn(of: str, seed: int, staleness: int, on_host: str, steps: int, out: Path | None) -> float:
    """Prepare, train, print a row; the rise of the mean reward. `on_host`: type of the moments there."""
    with tempfile.TemporaryDirectory() as scratch:
        data, manifest = Path(scratch) / "data", Path(scratch) / "rljob.yaml"
        changes = {"data": {"seed": seed}, "train": {"steps": steps, "staleness": staleness}, **ahead(staleness)}
        changes = merge(changes, moments(on_host))
        manifest.write_text(yaml.safe_dump(example(f"learning-{seed}", of=of, **changes)))
        call(str(EXAMPLES / of / "prepare.py"), str(data), "--seed", str(seed))
        call("-m", "rljob_trainer", "run", str(manifest), "--mount", f"/data={data}")
        log = (data / RUNS[of] / "metrics.jsonl").read_text()
    curves = {name: series(log, name) for name in ("reward/mean", "evaluation/reward")}
    if out:
        with out.open("a") as lines:
            lines.write(json.dumps({"seed": seed, "staleness": staleness, "on_host": on_host, **curves}) + "\n")
    rewards, held_out = (list(curve.values()) for curve in curves.values())
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    names = ("train_rollout/begun_age", "train_rollout/effective_sample_size")
    age, effective = (sum(found := list(series(log, name).values())) / len(found) for name in names)
    row = f"{seed:4d} {staleness:9d} {first:17.3f} {last:9.3f} {last - first:7.3f} {held_out[0]:17.3f} {held_out[-1]:7.3f}"
    row += f" {age:5.2f} {effective:11.3f}  {on_host}"
    print(row, flush=True)
    return last - first


def call(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
