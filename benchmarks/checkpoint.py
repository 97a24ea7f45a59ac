"""What a save costs the loop, and how long it takes: alongside training and waited for, in one run on this machine.

    python -m benchmarks.checkpoint [--ranks N] [--experts N] [--repeats N] [--rows N] [--unprepared] [--scratch DIR]
    torchrun --nproc-per-node N -m benchmarks.checkpoint --device gpu [--size NAME] [--repeats N] [--rows N] [--scratch DIR]

On CPU a Qwen2 of 30 M parameters, fp32, on N (2) data-parallel ranks of gloo, or with `--experts` a Qwen3-MoE of 8 layers with N tiny experts each,
dealt to the ranks, so that the number of tensors is what takes time; on GPUs the 1.5 B shape, or another of benchmarks/shapes.py, bf16, in
tensor parallelism over all of them. There, host memory is first made ready as in a job; a line says how long that takes, and a training step
meanwhile. With `--unprepared` it is left to the first save. Each save is made after a training step and while further steps run; the stall is the
time that the loop did not train, the total the time until the checkpoint was committed. Medians, after a first one, of which only the stall is shown.
The last columns are the length of a training step during a save, over that without, and the bytes of a checkpoint over the total. `--rows 1`: only
the save of a job that continues training. Never more than one is on disk. On GPUs a line says how fast each of them copies into pinned memory, which
bounds the stall, and another what writes 8 GB per rank to DIR without hashing it. The last line says how long the last checkpoint takes to load.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import training
from benchmarks.shapes import MODELS, model_of
from rljob_api.protocol import Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.manifest import ENGINE
from rljob_trainer.megatron import compat
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory

SHAPE = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 16384,
    "tie_word_embeddings": False,
}

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True, "head_dim": 64}
DISK_BLOCKS = 32
"""Of 256 MiB."""
ROWS = (False, True)
"""Whether training waits."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoint")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, help="of each layer, on CPU")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b", help="on GPUs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2, help="how many of the table's rows")
    parser.add_argument(
        "--unprepared", action="store_true", help="leave it to the first save to make host memory ready"
    )
    parser.add_argument("--scratch", type=Path, help="where checkpoints go; a temporary directory otherwise")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compat.install()
    run = on_cpu if options.device == "cpu" else on_gpu
    run(options)


def on_cpu(options: argparse.Namespace) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import rljob_trainer.megatron.engine  # noqa: F401
    from trainer.ranks import run_ranks

    gc.freeze()  # as pod/fork_server.py does, once everything is imported
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        model = random_model(Path(scratch) / "model", options.experts)
        parallelism = {"expert": options.ranks} if options.experts else {}
        made = spec(Path(scratch), model, {"device": "cpu", "nodes": options.ranks, "parallelism": parallelism})
        run_ranks(options.ranks, lambda: measure(made, options))


def on_gpu(options: argparse.Namespace) -> None:
    training.start_rank()
    chosen = [tempfile.mkdtemp(dir=options.scratch) if dist.get_rank() == 0 else ""]
    if dist.get_rank() == 0:
        model_of(options.size)
    dist.broadcast_object_list(chosen)
    gpus = dist.get_world_size()
    trainer = {"processesPerNode": gpus, "parallelism": {"tensor": gpus}}
    measure(spec(Path(chosen[0]), model_of(options.size), trainer), options)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(chosen[0])
    dist.destroy_process_group()


def random_model(directory: Path, experts: int | None) -> Path:
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    mixture = experts and Qwen3MoeConfig(**SHAPE, **EXPERTS, num_experts=experts)
    model = AutoModelForCausalLM.from_config(mixture or Qwen2Config(**SHAPE))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps({}))
    return directory


def spec(root: Path, model: Path, trainer: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32" if trainer.get("device") == "cpu" else "bfloat16"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1000, "promptsPerStep": 4, "samplesPerPrompt": 4, "tokensPerMicroBatch": 256},
            "trainer": trainer,
            "rollout": {"sampling": {"maxTokens": 32}},
            "checkpoint": {"path": str(root / "run"), "keepLast": 1},
            "image": "none",
        }
    )


def measure(spec: RLJobSpec, options: argparse.Namespace) -> None:
    """On every rank; the first prints a row as soon as it has it."""
    from rljob_trainer.checkpoint.lineage import Run
    from rljob_trainer.checkpoint.saving import Saver
    from rljob_trainer.checkpoint.store import Store
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.wire.collective import Ranks

    engine, ranks = Engine(spec, lambda: None), Ranks(600)
    run = Run(
        job_uid="bench",
        attempt=1,
        model="",
        resume=Resume(policy="auto"),
        resume_from=None,
        keep_last=1,
    )
    root = Path(spec.checkpoint.path)
    saver = Saver(engine, ranks, Store(root, run) if ranks.is_first else None)
    steps = Steps(engine)
    say = partial(print, flush=True) if ranks.is_first else lambda _: None
    if torch.cuda.is_available():
        say(f"a rank copies {copy_rate():.1f} GB/s to pinned memory; all write {disk_rate(root, ranks):.2f} GB/s")
    if torch.cuda.is_available() and not options.unprepared:
        say(preparation(engine, ranks, steps))
    say("waited for    first s    stall s    total s    step beside / alone       GB/s")
    for waited in ROWS[: options.rows]:
        say(row(saver, steps, root, waited, options.repeats))
    began, [saved] = time.monotonic(), root.glob("global_step_*")
    engine.load(saved / ENGINE)
    say(f"loaded in {time.monotonic() - began:.2f} s")


class Steps:
    """Training steps of one batch over and over."""

    def __init__(self, engine: Any):
        self._engine, self.done = engine, 0
        self.take()

    def take(self) -> float:
        """Train once; seconds."""
        began, self.done = time.monotonic(), self.done + 1
        response = ((1, 2, 3, 4), range(5, 37), [-9.7] * 32, self.done - 1)
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
        measured = self._engine.measure(Batch.of(self.done + 1, samples, {}))
        self._engine.update(measured, self._engine.objective.advantages(measured))
        return time.monotonic() - began


def preparation(engine: Any, ranks: Any, steps: Steps) -> str:
    staging, alone, during = engine._staging, min(steps.take() for _ in range(3)), [0.0]
    began = time.monotonic()
    engine.prepare_save()
    while not ranks.all(staging.is_ready):
        during.append(steps.take())
    seconds = time.monotonic() - began
    return f"{staging.size / 1e9:.1f} GB were ready after {seconds:.1f} s; a step meanwhile / alone {max(during) / alone:.2f}"


def row(saver: Any, steps: Steps, root: Path, waited: bool, repeats: int) -> str:
    (first, *_), *found = [save(saver, steps, root, waited) for _ in range(repeats + 1)]
    stall, total, beside, alone = (statistics.median(column) for column in zip(*found, strict=True))
    ratio = "-" if waited else f"{beside / alone:.2f}"
    dist.barrier()  # rank 0 has committed
    rate = bytes_on_disk(root) / total / 1e9
    dist.barrier()  # nobody deletes it yet
    return f"{'yes' if waited else 'no':11s}{first:10.2f}{stall:11.2f}{total:11.2f}{ratio:>12s}{rate:>18.2f}"


def copy_rate() -> float:
    """GB/s from this rank's GPU into pinned memory that is there already."""
    gpu = torch.empty(2**32, dtype=torch.uint8, device="cuda")
    host = torch.empty_like(gpu, device="cpu", pin_memory=True)
    torch.cuda.synchronize()
    began = time.monotonic()
    host.copy_(gpu, non_blocking=True)
    torch.cuda.synchronize()
    return gpu.numel() / (time.monotonic() - began) / 1e9


def disk_rate(root: Path, ranks: Any) -> float:
    """GB/s of all ranks together, each into a file of its own, until it is durable."""
    file, block = root.parent / f"disk-{ranks.rank}", bytes(2**28)
    ranks.barrier()
    began = time.monotonic()
    with file.open("wb", buffering=0) as stream:
        for _ in range(DISK_BLOCKS):
            stream.write(block)
        os.fsync(stream.fileno())
    ranks.barrier()
    seconds = time.monotonic() - began
    file.unlink()
    return ranks.world * DISK_BLOCKS * len(block) / seconds / 1e9


def bytes_on_disk(root: Path) -> int:
    """Of the one checkpoint."""
    return sum(f.stat().st_size for f in root.glob("global_step_*/**/*") if f.is_file())


def save(saver: Any, steps: Steps, root: Path, waited: bool) -> tuple[float, float, float, float]:
    """Seconds of stall and in total; of a step beside the writer and of one alone."""
    for earlier in root.glob("global_step_*") if dist.get_rank() == 0 else ():
        shutil.rmtree(earlier)
    alone, beside, began = steps.take(), [0.0], time.monotonic()
    saver.begin(steps.done, "", {}, alongside=not waited)
    while not (saved := saver.complete(wait=waited)):
        beside.append(steps.take())
    return saved.stall_seconds, time.monotonic() - began, max(beside), alone


if __name__ == "__main__":
    main()
