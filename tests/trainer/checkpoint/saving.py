"""Saves one checkpoint after another until it is killed: `python saving.py ROOT ATTEMPT`. Says `step N` after each commit."""

import sys
from pathlib import Path

from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.manifest import fingerprints
from rljob_trainer.checkpoint.store import Store

FILES = 6


def open_store(
    root: Path,
    attempt: int,
    step: int | None = None,
    policy: str = "auto",
    job: str = "job",
    model: str = "m",
    keep_last: int = 2,
) -> Store:
    return Store(root, job, attempt, model, Resume(policy=policy, step=step), keep_last)


def save(store: Store, step: int) -> None:
    scratch = store.begin(step)
    for i in range(FILES):
        (scratch / "megatron").mkdir(exist_ok=True)
        (scratch / "megatron" / f"{i}.bin").write_bytes(bytes([step % 256]) * 1000)
    store.commit(step, fingerprints(scratch, 0, 1), "tp1-pp1-dp1", f"digest{step}", {"consumed": step, "prompts": 10})


if __name__ == "__main__":
    root = Path(sys.argv[1])
    store = open_store(root, int(sys.argv[2]))
    step = store.start.step if store.start else 0
    print(f"from {step}", flush=True)
    while True:
        step += 1
        save(store, step)
        print(f"step {step}", flush=True)
