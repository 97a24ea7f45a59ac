"""Supervised training on one GPU: sft and dpo beside the bare probe, and sft beside transformers' Trainer, in the same run.

    python -m benchmarks.supervised [--only probe,sft,dpo,transformers] [--out FILE] [--model DIR]

All measure the packed shape: 64 sequences of 200 to 2,000 tokens a step, of which the first 100 of each are a prompt; dpo takes them as 32 pairs.
Trainer has no packing here: its rows are padded to the longest of a micro-batch, with the largest number of rows that fits, and only
the tokens of sequences count. It computes in bfloat16 with float32 weights (`bf16`), with torch's attention and fused AdamW.

`of_bound`, of dpo: a third more than an sft step of the same tokens (the policy's forward and backward are three passes, the reference's forward is
one), over its own seconds.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.shapes import MODEL, PEAK_FLOPS, Shape, shapes, write_model
from benchmarks.training import STEPS, measure, run, start_engine, torchrun

PARTS = ("probe", "sft", "dpo", "transformers")
PROMPT = 100
ROWS = (32, 16, 8, 4)
"""Of a micro-batch of Trainer: the first that fits counts."""
DPO_PASSES = 4 / 3
COLUMNS = (
    "what",
    "configuration",
    "shape",
    "tokens_per_s",
    "mfu",
    "peak_gib",
    "of_probe",
    "of_transformers",
    "of_bound",
)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.supervised")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("supervised.jsonl"))
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--worker", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.model)
        return 0
    write_model(options.model)
    rows: list[dict[str, Any]] = []
    for part in options.only.split(","):
        rows += run(command(part, options.model), {})
        options.out.write_text(jobs.lines(compared(rows)))
    print(jobs.table(compared(rows), COLUMNS))
    return 0


def command(part: str, model: Path) -> list[str]:
    if part == "probe":
        return [*torchrun(1), "-m", "benchmarks.probe", "te"]
    module = ["-m", "benchmarks.supervised", "--model", str(model), "--worker", part]
    return module if part == "transformers" else torchrun(1) + module


def worker(part: str, model: Path) -> None:
    """Measures one part and prints its row."""
    shape = shapes()["packed"]
    row = trainer(model, shape) if part == "transformers" else product(part, model, shape)
    print(json.dumps(row), flush=True)


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the packed shape, each with its share of the others' speed."""
    found = {row["what"]: row for row in rows if row["shape"] == "packed"}
    speeds = {what: row["tokens_per_s"] for what, row in found.items()}
    for row in found.values():
        bounds = {"of_probe": speeds.get("probe"), "of_transformers": speeds.get("transformers")}
        if row["what"] == "dpo":
            bounds["of_bound"] = speeds.get("sft", 0) / DPO_PASSES
        row |= {name: round(row["tokens_per_s"] / bound, 3) for name, bound in bounds.items() if bound}
    return list(found.values())


def product(task: str, model: Path, shape: Shape) -> dict[str, Any]:
    import torch.distributed as dist

    engine = start_engine(spec(task, model))
    row = measure(engine, shape, demonstrated if task == "sft" else preferred)
    dist.destroy_process_group()
    return {"what": task, "configuration": "te"} | row


def spec(task: str, model: Path) -> Any:
    from rljob_api.spec import RLJobSpec

    return RLJobSpec.model_validate(
        {
            "task": task,
            "image": "none",
            "model": {"path": str(model), "dtype": "bfloat16"},
            "data": {"train": ["/none"], "maxTokens": 4096},
            "train": {"steps": 100, "tokensPerMicroBatch": 16384},
            "trainer": {"device": "gpu"},
            "checkpoint": {"path": "/tmp/none"},
        }
    )


def demonstrated(shape: Shape, step: int) -> Any:
    """Each sequence an example of its own."""
    return given(shape, step, variants=1)


def preferred(shape: Shape, step: int) -> Any:
    """Two sequences behind each other are a pair: chosen and rejected."""
    return given(shape, step, variants=2)


def given(shape: Shape, step: int, variants: int) -> Any:
    from rljob_trainer.wire.batch import Batch
    from rljob_trainer.wire.trajectory import Trajectory, demonstration, prompt

    samples = [
        Trajectory(
            (prompt(tokens[:PROMPT]), demonstration(tokens[PROMPT:])),
            prompt_index=0,
            group=i // variants,
            sample=i % variants,
            finish_reason="stop",
            reward=0.0,
            data_source="none",
        )
        for i, tokens in enumerate(sequences(shape, step, more=1))
    ]
    return Batch.of(step, samples, {})


def sequences(shape: Shape, step: int, more: int) -> list[list[int]]:
    """Random tokens, each sequence `more` longer than the shape says: its last token is predicted and not fed."""
    import random

    draw = random.Random(step)
    return [draw.choices(range(1000, 150000), k=length + more) for length in shape.lengths]


def trainer(model: Path, shape: Shape) -> dict[str, Any]:
    """transformers' Trainer with the most rows that fit."""
    import torch

    for rows in ROWS:
        try:
            return trained(model, shape, rows)
        except torch.OutOfMemoryError:
            print(f"{rows} rows do not fit", file=sys.stderr)
            torch.cuda.empty_cache()
    raise RuntimeError(f"not even {ROWS[-1]} rows fit")


def trained(model: Path, shape: Shape, rows: int) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    torch.cuda.reset_peak_memory_stats()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    steps = STEPS + 2
    arguments = TrainingArguments(
        output_dir="/tmp/rljob-bench-trainer",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=len(shape.lengths) // rows,
        max_steps=steps,
        learning_rate=1e-6,
        bf16=True,
        optim="adamw_torch_fused",
        logging_strategy="no",
        report_to=[],
        save_strategy="no",
    )
    examples = [{"input_ids": t} for step in range(1, steps + 1) for t in sequences(shape, step, more=0)]
    clock = stopwatch()
    Trainer(network, arguments, train_dataset=examples, data_collator=padded, callbacks=[clock]).train()
    best = min(clock.seconds[2:])
    return {
        "what": "transformers",
        "configuration": f"{rows} rows",
        "shape": shape.name,
        "tokens_per_s": round(shape.tokens / best),
        "mfu": round(shape.flops() / best / PEAK_FLOPS, 4),
        "seconds": [round(t, 4) for t in clock.seconds],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def stopwatch() -> Any:
    """A callback that has the seconds of every optimizer step."""
    import time

    import torch
    from transformers import TrainerCallback

    class Stopwatch(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.began)

    return Stopwatch()


def padded(examples: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Rows of one length, [b, longest]; prompts and padding are not learnt from."""
    import torch

    longest = max(len(e["input_ids"]) for e in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.long)
    labels, mask = torch.full_like(tokens, -100), torch.zeros_like(tokens)
    for row, example in enumerate(examples):
        found = torch.tensor(example["input_ids"])
        tokens[row, : len(found)], mask[row, : len(found)] = found, 1
        labels[row, PROMPT : len(found)] = found[PROMPT:]
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


if __name__ == "__main__":
    sys.exit(main())
