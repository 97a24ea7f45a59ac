"""How fast supervised data are read and tokenised, and what they cost in memory: python -m benchmarks.data [ROWS] [FORMAT...].

Generated conversations (10 M unless ROWS says otherwise) in one file per format (jsonl, arrow, parquet; below TMPDIR, some GB each) are opened as the
driver does, and drawn in shuffled steps of 64: in its own process, and by its worker processes. Each format is measured in a process of its own.
Memory is anonymous memory (RssAnon): what is mapped from files counts only as long as nobody else needs the room.

Tokenising runs while steps train, so ranks wait for data only when it makes fewer tokens a second than they train. Rates per second of processor
time, which other work on the machine changes little, are also given in H200s. What ranks did wait in a job is its metric time/data.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.encoding import EncodingWorkers
from rljob_trainer.data.examples import ExampleSet
from rljob_trainer.data.loading import load_examples
from rljob_trainer.data.order import Cursor
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver.buffer.examples import AHEAD, ExampleBuffer, Examples

FORMATS = ("jsonl", "arrow", "parquet")
DISTINCT = 10_000
"""Rows that the file repeats."""
STEP, STEPS = 64, 100
H200 = 52_500
"""Tokens a second that one trains of 1.5 billion parameters, packed (docs/evidence/gpus.md)."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    rows = int(next((a for a in sys.argv[1:] if a.isdigit()), 10_000_000))
    wanted = [a for a in sys.argv[1:] if a in FORMATS] or FORMATS
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        conversations = list(generated())
        save_tokenizer(root / "model", (m["content"] for c in conversations for m in c["messages"]))
        for form in wanted:
            file = root / f"rows.{form}"
            write(file, conversations, rows)
            print(f"{form}: {rows:,} rows, {file.stat().st_size / 1e9:.1f} GB", flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks.data", "measure", str(root), str(file)], check=True)
            file.unlink()


def generated() -> Iterator[dict]:
    """Conversations of two turns, in words of 2 to 9 letters of which few are frequent."""
    chance = random.Random(0)
    words = ["".join(chance.choices("etaoinshrdlucmfw", k=chance.randint(2, 9))) for _ in range(3000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    for _ in range(DISTINCT):
        said = [" ".join(chance.choices(words, weights, k=chance.randint(4, 28))) for _ in range(4)]
        yield {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]}


def save_tokenizer(path: Path, texts: Iterator[str]) -> None:
    """Byte-level BPE of 8,000 tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", chat_template=TEMPLATE).save_pretrained(path)
    (path / "config.json").write_text('{"model_type": "qwen2"}')


def write(file: Path, conversations: list[dict], rows: int) -> None:
    table = pa.Table.from_pylist(conversations)
    times = range(rows // DISTINCT)
    if file.suffix == ".jsonl":
        block = "".join(json.dumps(c) + "\n" for c in conversations).encode()
        with file.open("wb") as stream:
            for _ in times:
                stream.write(block)
    elif file.suffix == ".arrow":
        with pa.ipc.new_file(str(file), table.schema) as arrow:
            for _ in times:
                arrow.write_table(table)
    else:
        with pq.ParquetWriter(file, table.schema) as parquet:
            for _ in times:
                parquet.write_table(table)


def measure(root: Path, file: Path) -> None:
    spec = RLJobSpec.model_validate(
        {
            "task": "sft",
            "model": {"path": str(root / "model")},
            "data": {"train": [str(file)], "maxTokens": 4096},
            "train": {"steps": STEPS, "samplesPerStep": STEP},
            "checkpoint": {"path": str(root / "run")},
            "image": "none",
        }
    )
    tokenizer, before = load_tokenizer(spec), anonymous_mib()
    began = time.monotonic()
    workers = EncodingWorkers(spec)
    examples = load_examples(spec, "train", tokenizer, root / "scratch", workers)
    opened = time.monotonic() - began
    print(f"  opened in {opened:.1f} s, with {anonymous_mib() - before:.0f} MiB", flush=True)
    asyncio.run(report("by the workers", examples, STEPS))
    waited = asyncio.run(waiting(spec, examples))
    print(f"  at the pace of one H200, steps waited {100 * waited:.1f} % of their time for data", flush=True)
    examples._workers = None  # type: ignore[attr-defined]
    asyncio.run(report("by the driver itself", examples, STEPS // 4))
    print(f"  in memory at the end: {anonymous_mib() - before:.0f} MiB", flush=True)
    workers.close()


async def report(who: str, examples: ExampleSet, steps: int) -> None:
    await examples.drawn(range(STEP))  # processes start, tokenizers are loaded
    began, before = time.monotonic(), processor_seconds()
    tokens, ahead = 0, 4
    for step in range(0, steps, ahead):
        found = await examples.drawn(range(step * STEP, (step + ahead) * STEP))
        tokens += sum(len(segment.tokens) for e in found for variant in e.variants for segment in variant)
    seconds = time.monotonic() - began
    print(f"  {who}: {steps * STEP / seconds:,.0f} rows/s, {tokens / seconds:,.0f} tokens/s", flush=True)
    for name, a, b in zip(("the driver", "a worker"), before, processor_seconds(), strict=True):
        if b > a:
            rate = tokens / (b - a)
            print(f"    per second of {name}'s processor: {rate:,.0f} tokens, of {rate / H200:.1f} H200s", flush=True)


async def waiting(spec: RLJobSpec, examples: ExampleSet) -> float:
    """What share of their time steps wait for data that last as long as an H200 trains their tokens, as the driver's batches come; without the
    first AHEAD + 1, which a job's start makes ready."""
    changed, waited, trained = asyncio.Event(), 0.0, 0.0
    buffer = ExampleBuffer(spec, Examples(examples, None), changed.set, 0, Cursor(0))
    for step in range(STEPS):
        began = time.monotonic()
        while (found := buffer.take()) is None:
            assert not buffer.is_idle
            changed.clear()
            await changed.wait()
        took = time.monotonic() - began
        seconds = float(found.batch.columns.length.sum()) / H200
        await asyncio.sleep(seconds)
        if step > AHEAD:
            waited, trained = waited + took, trained + seconds
    await buffer.stop()
    return waited / (waited + trained)


def processor_seconds() -> tuple[float, float]:
    """Of this process, and of its children together."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time(), sum(times.user + times.system for times in children)


def anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
