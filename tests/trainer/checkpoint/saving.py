"""Saves one checkpoint after another until it is killed: `python saving.py ROOT ATTEMPT`. Says `step N` after each step,
which it saves in both formats, one after the other."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.lineage import Run
from rljob_trainer.checkpoint.manifest import Contents, Files, buffer_directory, engine_directory, fingerprints
from rljob_trainer.checkpoint.store import Store

FILES = 6


def open_store(
    root: Path, attempt: int, step: int | None = None, policy: str = "auto", source: Path | None = None, **changes: Any
) -> Store:
    run = Run(
        job_uid="job",
        attempt=attempt,
        model="m",
        layout="tp1-pp1-dp1",
        resume=Resume(policy=policy, step=step),
        resume_from=source,
        keep_last=2,
    )
    return Store(root, replace(run, **changes))


def save(store: Store, step: int, reshardable: bool = True, layout: str = "tp1-pp1-dp1") -> None:
    """The rollout buffer holds nothing when an even step is saved in the first format, and something in every other save."""
    scratch = store.begin(step)
    directory = scratch / engine_directory(reshardable)
    directory.mkdir()
    for i in range(FILES):
        (directory / f"{i}.bin").write_bytes(bytes([step % 256]) * 1000)
    if reshardable or step % 2:
        buffer = scratch / buffer_directory(reshardable)
        buffer.mkdir()
        (buffer / "buffer.json").write_text(f'{{"reshardable": {str(reshardable).lower()}}}')
    store.commit(contents(step, fingerprints(scratch), reshardable, layout))


def contents(step: int, files: Files, reshardable: bool = True, layout: str = "tp1-pp1-dp1") -> Contents:
    data = {"consumed": step, "prompts": 10}
    digest = f"digest{step}"
    return Contents(step=step, layout=layout, reshardable=reshardable, digest=digest, data=data, files=files)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    store = open_store(root, int(sys.argv[2]))
    step = store.start.manifest.step if store.start else 0
    print(f"from {step}", flush=True)
    while True:
        step += 1
        save(store, step, reshardable=False)
        save(store, step)
        print(f"step {step}", flush=True)
