"""How long ranks of a GPU wait for the examples of `task: sft`, which other processes read and tokenise meanwhile: the product's own command.

    python -m benchmarks.waiting_for_data [--size 1.5b] [--rows 100000] [--steps 20] [--samples 64] [--device gpu] [--out FILE]

Generated conversations as in benchmarks/data.py, in Parquet. Prints of each step its seconds, those for which ranks waited (`data`), and those in
which its examples were read and tokenised; the first two steps, which compile kernels and fill the buffer, are not in the mean.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import data, jobs, scratch
from benchmarks.shapes import MODELS, TOKENIZER, model_of

MEASURES = ("time/data", "time/tokenise", "train/tokens")
BEFORE = 2
LIMIT_SECONDS = 280


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.waiting_for_data")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=64, help="of a step")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("waiting_for_data.json"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    shared = model_of(options.size)
    with scratch.directory(options.work, "waiting") as options.work:
        model = prepared(options, shared)
        ended = jobs.run(options.work, "bench-waiting", job(options, model), options.steps, LIMIT_SECONDS)
    rows = jobs.summary(ended, options.steps, MEASURES)
    names = ("seconds", "data", "tokenise", "tokens")
    counted = rows[BEFORE:]
    means = {
        name: round(statistics.mean(row[name] for row in counted), 4)
        for name in names
        if counted and name in counted[0]
    }
    options.out.write_text(json.dumps({"exit": ended.code, "means": means, "steps": rows}, indent=1))
    print(jobs.table(rows))
    print(json.dumps(means))
    return ended.code


def prepared(options: argparse.Namespace, shared: Path) -> Path:
    """The model with the tokenizer of the conversations, and the file of these."""
    model, conversations = options.work / "model", list(data.generated())
    scratch.link(shared, model, TOKENIZER)
    data.save_tokenizer(model, (m["content"] for c in conversations for m in c["messages"]))
    data.write(options.work / "rows.parquet", conversations, options.rows)
    return model


def job(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    gpu = options.device == "gpu"
    return {
        "task": "sft",
        "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"},
        "data": {"train": [str(options.work / "rows.parquet")], "maxTokens": 4096},
        "train": {
            "steps": options.steps + 1,
            "samplesPerStep": options.samples,
            "tokensPerMicroBatch": 16384,
            "optimizer": {"learningRate": 1e-5},
        },
        "trainer": {"device": options.device},
        "checkpoint": {"path": str(options.work / "run"), "everySteps": 0, "exportHuggingFace": False},
    }


if __name__ == "__main__":
    sys.exit(main())
