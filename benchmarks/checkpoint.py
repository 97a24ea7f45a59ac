"""What a save costs the loop, and how long it takes: both formats, waited for and beside training, in one run on this machine.

    python -m benchmarks.checkpoint [RANKS]

A Qwen2 of 30 M parameters, fp32, on RANKS (2) data-parallel ranks of gloo. Each save is made after a training step and while further steps run; the
stall is the time that the loop did not train, the total the time until the checkpoint was committed. Medians of REPEATS, after one that is
not counted. The last column is the length of a training step beside the writer, over that without.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rljob_api.protocol import Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Sample, Span, StepBatch
from rljob_trainer.megatron import runtime

SHAPE = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 16384,
    "tie_word_embeddings": False,
}
REPEATS = 5


def main(ranks: int) -> None:
    torch.set_num_threads(1)
    runtime.install()
    from trainer.ranks import run_ranks

    with tempfile.TemporaryDirectory() as scratch:
        spec = prepare(Path(scratch), ranks)
        rows = run_ranks(ranks, lambda: measure(spec))[0]
    print("format              waited for    stall s    total s    step beside / alone")
    for row in rows:
        print(row)


def prepare(root: Path, ranks: int) -> RLJobSpec:
    """A random model, and the spec of a job that trains it."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {ranks} ranks")
    model.save_pretrained(root / "model")
    (root / "model" / "tokenizer.json").write_text(json.dumps({}))
    return RLJobSpec.model_validate(
        {
            "model": {"path": str(root / "model"), "dtype": "float32"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1000, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 256},
            "trainer": {"device": "cpu", "nodes": ranks},
            "rollout": {"sampling": {"maxTokens": 32}},
            "checkpoint": {"path": str(root / "run"), "keepLast": 1},
            "image": "none",
        }
    )


def measure(spec: RLJobSpec) -> list[str]:
    """On every rank; the rows of the table."""
    from rljob_trainer.checkpoint.lineage import Run
    from rljob_trainer.checkpoint.store import Store
    from rljob_trainer.collective import Ranks
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.saving import Saver

    engine, ranks = Engine(spec, lambda: None), Ranks(600)
    run = Run(
        job_uid="bench",
        attempt=1,
        model="",
        layout=engine.layout,
        resume=Resume(policy="auto"),
        resume_from=None,
        keep_last=1,
    )
    saver = Saver(engine, ranks, Store(Path(spec.checkpoint.path), run) if ranks.is_first else None)
    steps = Steps(engine)
    return [row(saver, steps, reshardable, waited) for reshardable in (True, False) for waited in (True, False)]


class Steps:
    """Training steps of one batch over and over."""

    def __init__(self, engine: Any):
        self._engine, self.done = engine, 0
        self.take()

    def take(self) -> float:
        """Train once; seconds."""
        began, self.done = time.monotonic(), self.done + 1
        samples = (
            Sample(
                g, g, s, (1, 2, 3, 4), tuple(range(5, 37)), (-9.7,) * 32, (Span(-1, 32),), "stop", float(s % 2), "bench"
            )
            for g in range(4)
            for s in range(4)
        )
        self._engine.train_step(StepBatch(self.done, tuple(samples), {}))
        return time.monotonic() - began


def row(saver: Any, steps: Steps, reshardable: bool, waited: bool) -> str:
    found = [save(saver, steps, reshardable, waited) for _ in range(REPEATS + 1)][1:]
    stall, total, beside, alone = (statistics.median(column) for column in zip(*found, strict=True))
    name = "fully_reshardable" if reshardable else "dp_reshardable"
    ratio = "-" if waited else f"{beside / alone:.2f}"
    return f"{name:20s}{'yes' if waited else 'no':11s}{stall:10.2f}{total:11.2f}{ratio:>12s}"


def save(saver: Any, steps: Steps, reshardable: bool, waited: bool) -> tuple[float, float, float, float]:
    """Seconds of stall and in total; of a step beside the writer and of one alone."""
    alone, beside, began = steps.take(), [0.0], time.monotonic()
    saver.begin(steps.done, "", {}, reshardable)
    while not (saved := saver.settle(wait=waited)):
        beside.append(steps.take())
    return saved.stall_seconds, time.monotonic() - began, max(beside), alone


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
