"""How many weights does an update change, and would sending only those pay?

    python -m benchmarks.changed_weights RUN [--out FILE]

RUN is the directory of a run with `checkpoint.exportEverySteps: 1`, whose exports are compared in bfloat16, each with the one before it. Prints, for
each update, the share of weights that differ in any bit, and the least bytes that name them and give their values, as a share of a whole update's
(the entropy of which of n weights changed, and two bytes for each of these). FILE gets the lines as JSON.
"""

import argparse
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import safe_open

BITS = 16


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.changed_weights")
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [json.dumps(line) for line in updates(options.run)]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def updates(run: Path) -> Iterator[dict[str, float]]:
    exports = sorted((run / "exports").iterdir(), key=step_of)
    for before, after in pairwise(exports):
        share = changed(before, after)
        yield {"step": step_of(after), "changed": round(share, 6), "bytes": round(bytes_to_send(share), 6)}


def step_of(export: Path) -> int:
    return int(export.name.rpartition("_")[2])


def changed(before: Path, after: Path) -> float:
    """Share of the weights whose bfloat16 differs in any bit."""
    differ = total = 0
    for file in sorted(after.glob("*.safetensors")):
        with safe_open(before / file.name, "pt") as old, safe_open(file, "pt") as new:
            for name in sorted(new.keys()):
                one, other = (tensors.get_tensor(name).bfloat16().view(torch.int16) for tensors in (old, new))
                differ += int((one != other).sum())
                total += one.numel()
    return differ / total


def bytes_to_send(share: float) -> float:
    """Of a whole update's: by Shannon's entropy of the choice of weights (1948, theorem 2), and their values."""
    if not 0 < share < 1:
        return share
    choice = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return choice / BITS + share


if __name__ == "__main__":
    main()
