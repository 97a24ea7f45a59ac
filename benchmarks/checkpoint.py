"""What a save costs the loop, and how long it takes: both formats, waited for and beside training, in one run on this machine.

    python -m benchmarks.checkpoint [--ranks N] [--device cpu|gpu] [--repeats N] [--scratch DIR]

On CPU a Qwen2 of 30 M parameters, fp32, on N (2) data-parallel ranks of gloo; on a GPU the 1.5 B shape, bf16, on one rank. Each save is made after
a training step and while further steps run; the stall is the time that the loop did not train, the total the time until the checkpoint was
committed. Medians, after one that is not counted. The last column is the length of a training step beside the writer, over that without.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rljob_api.protocol import Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Batch
from rljob_trainer.megatron import compat
from rljob_trainer.trajectory import Trajectory

SHAPE = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 16384,
    "tie_word_embeddings": False,
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoint")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where checkpoints go; a temporary directory otherwise")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compat.install()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        run = on_cpu if options.device == "cpu" else on_gpu
        run(options, Path(scratch))


def on_cpu(options: argparse.Namespace, scratch: Path) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from trainer.ranks import run_ranks

    model = random_model(scratch / "model")
    made = spec(scratch, model, "cpu", options.ranks)
    run_ranks(options.ranks, lambda: measure(made, options.repeats))


def on_gpu(options: argparse.Namespace, scratch: Path) -> None:
    import torch.distributed as dist

    from benchmarks.shapes import write_model

    model = write_model()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    measure(spec(scratch, model, "gpu", 1), options.repeats)
    dist.destroy_process_group()


def random_model(directory: Path) -> Path:
    from transformers import AutoModelForCausalLM, Qwen2Config

    model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps({}))
    return directory


def spec(root: Path, model: Path, device: str, ranks: int) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32" if device == "cpu" else "bfloat16"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1000, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 256},
            "trainer": {"device": device, "nodes": ranks},
            "rollout": {"sampling": {"maxTokens": 32}},
            "checkpoint": {"path": str(root / "run"), "keepLast": 1},
            "image": "none",
        }
    )


def measure(spec: RLJobSpec, repeats: int) -> None:
    """On every rank; the first prints a row as soon as it has it."""
    from rljob_trainer.checkpoint.lineage import Run
    from rljob_trainer.checkpoint.saving import Saver
    from rljob_trainer.checkpoint.store import Store
    from rljob_trainer.collective import Ranks
    from rljob_trainer.megatron.engine import Engine

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
    say = partial(print, flush=True) if ranks.is_first else lambda _: None
    say("format              waited for    stall s    total s    step beside / alone")
    for reshardable, waited in ((False, False), (False, True), (True, False), (True, True)):
        say(row(saver, steps, reshardable, waited, repeats))


class Steps:
    """Training steps of one batch over and over."""

    def __init__(self, engine: Any):
        self._engine, self.done = engine, 0
        self.take()

    def take(self) -> float:
        """Train once; seconds."""
        began, self.done = time.monotonic(), self.done + 1
        response = ((1, 2, 3, 4), range(5, 37), [-9.7] * 32, -1)
        samples = [
            Trajectory.of_response(
                *response,
                prompt_index=g,
                group=g,
                sample=s,
                finish_reason="stop",
                reward=float(s % 2),
                data_source="bench",
            )
            for g in range(4)
            for s in range(4)
        ]
        measured = self._engine.measure(Batch.of(self.done, samples, {}))
        self._engine.update(measured, self._engine.objective.advantages(measured))
        return time.monotonic() - began


def row(saver: Any, steps: Steps, reshardable: bool, waited: bool, repeats: int) -> str:
    found = [save(saver, steps, reshardable, waited) for _ in range(repeats + 1)][1:]
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
    main()
