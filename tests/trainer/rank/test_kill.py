"""kill -9 of a whole gang, at any point of saving: what was complete stays, and is what it was."""

import hashlib
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rljob_api import names
from rljob_api.protocol import Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.models import job, make_batch, make_model, train_step
from trainer.megatron.test_parity import off_policy
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

Program = Callable[[Callable[[int], Any]], None]
"""What each rank does; it is given what says that a step is complete."""

RANKS, PACE = 2, 4
"""PACE: saves of the first life, which tell how long one takes; each further life is killed within three of them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rljob_trainer.rank import main as rank

    rank.prepare()
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.extra)])
def test_kills_lose_no_complete_checkpoint(model: Path, tmp_path: Path, kills: int) -> None:
    chance, batch, spec = random.Random(0), make_batch(model, 1), off_policy(job(model, data=RANKS))
    begin = lambda attempt: lambda say: live(tmp_path, spec, batch, attempt, say)  # noqa: E731
    said = life(begin(1), lines=PACE)
    longest = 3 * (said[-1].time - said[0].time) / (len(said) - 1)
    for attempt in range(2, kills + 2):
        known = said[-1].step
        said = life(begin(attempt), seconds=chance.uniform(0, longest))
        assert said[0].step >= known
    last = life(begin(kills + 2))[0].step
    assert last >= said[-1].step > kills / 2, "hardly anything was saved: no test"
    print(f"\n{kills} kills within {longest:.1f} s of saving, {last} steps saved")


class Said(NamedTuple):
    """A step is complete, by the clock of the machine."""

    step: int
    time: float


def life(program: Program, lines: int = 0, seconds: float = 0) -> list[Said]:
    """What a gang said until it was killed, `seconds` after its first line and `lines` more: where it started from, and what it completed."""
    reader, writer = os.pipe()
    leader = os.fork()
    if not leader:
        lead(program, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        read = [pipe.readline() for _ in range(1 + lines)]
        time.sleep(seconds)
        os.killpg(leader, signal.SIGKILL)
        os.waitpid(leader, 0)
        read += pipe.readlines()
    assert not any(line.startswith("failed") for line in read), "".join(read)
    return [Said(int(step), float(moment)) for step, moment in map(str.split, read)]


def lead(program: Program, writer: int) -> None:
    """In a process group of its own."""
    os.setsid()
    try:
        run_ranks(RANKS, lambda: program(lambda step: os.write(writer, f"{step} {time.monotonic()}\n".encode())))
    except BaseException:
        os.write(writer, f"failed\n{traceback.format_exc()}".encode())
    finally:
        os._exit(1)


def live(root: Path, spec: RLJobSpec, batch: Batch, attempt: int, say: Callable[[int], Any]) -> None:
    """One rank: restore, compare with what was recorded; then train and save for ever, alongside training and while it waits."""
    from rljob_trainer.checkpoint.lineage import Run
    from rljob_trainer.checkpoint.saving import Saver
    from rljob_trainer.checkpoint.store import Store
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.wire.collective import Ranks

    engine, ranks = Engine(spec, lambda: None), Ranks(60)
    resume = Resume(policy="auto")
    run = Run(job_uid="j", attempt=attempt, model="m", resume=resume, resume_from=None, keep_last=2)
    store = Store(root, run) if ranks.is_first else None
    step = restore(root, ranks.broadcast(store.start.manifest.step if store and store.start else 0), engine)
    saver, tell = Saver(engine, ranks, store), say if store else lambda _: None
    tell(step)
    while True:
        step += 1
        train_step(engine, replace(batch, step=step))
        if saved := saver.complete(wait=True):
            tell(saved.step)
        saver.begin(step, digest(engine), {}, alongside=step % 3 != 0)
        if step % 3 == 0:
            saver.complete(wait=True)
            tell(step)


def restore(root: Path, step: int, engine: Any) -> int:
    from rljob_trainer.checkpoint.files import Tally
    from rljob_trainer.checkpoint.manifest import ENGINE, read_manifest

    if step:
        directory = names.step_dir(root, step)
        manifest = read_manifest(directory)
        assert manifest and not manifest.corruption(directory, 0, 1, Tally())
        engine.load(directory / ENGINE)
        assert digest(engine) == manifest.digest, f"step {step} is not what was saved"
    return step


def digest(engine: Any) -> str:
    found = hashlib.sha256()
    for name, tensor in engine.export():
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()
