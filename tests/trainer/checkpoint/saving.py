"""Saves one checkpoint after another until it is killed: `python saving.py ROOT ATTEMPT`. Says `step N` after each step,
of which it then renews the rollout buffer."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.lineage import Run
from rljob_trainer.checkpoint.manifest import BUFFERS, ENGINE, Contents, Files, fingerprints
from rljob_trainer.checkpoint.store import Store

FILES = 6


def open_store(
    root: Path, attempt: int, step: int | None = None, policy: str = "auto", source: Path | None = None, **changes: Any
) -> Store:
    run = Run(
        job_uid="job",
        attempt=attempt,
        model="m",
        resume=Resume(policy=policy, step=step),
        resume_from=source,
        keep_last=2,
    )
    return Store(root, replace(run, **changes))


def save(store: Store, step: int, with_buffer: bool = True) -> None:
    scratch = store.begin(step)
    directory = scratch / ENGINE
    directory.mkdir()
    for i in range(FILES):
        (directory / f"{i}.bin").write_bytes(bytes([step % 256]) * 1000)
    if with_buffer:
        write_buffer(scratch / BUFFERS[0])
    store.commit(contents(step, fingerprints(scratch)))


def write_buffer(directory: Path, content: str = "saved") -> None:
    directory.mkdir()
    (directory / "buffer.json").write_text(content)


def contents(step: int, files: Files) -> Contents:
    data = {"consumed": step, "prompts": 10}
    return Contents(step=step, layout="tp1-pp1-dp1", digest=f"digest{step}", data=data, files=files)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    store = open_store(root, int(sys.argv[2]))
    step = store.start.manifest.step if store.start else 0
    print(f"from {step}", flush=True)
    while True:
        step += 1
        save(store, step)
        store.renew_buffer(step, write_buffer)
        print(f"step {step}", flush=True)
