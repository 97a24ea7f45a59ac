"""Optimizer states in a checkpoint, of which every rank writes and reads its own numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import RLJobSpec
from trainer.megatron.gang import equal, moments, run_engines, weights
from trainer.megatron.kinds import make_config
from trainer.megatron.models import job, make_batch, make_model, random_model, train_step
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

METHODS = ("sharded_param_state_fully_reshardable", "load_parameter_state_from_fully_reshardable")
WIDE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
"""31 M parameters, of which a process's other memory is a small part."""


@pytest.fixture(autouse=True)
def patched(megatron: None) -> None:
    pass


@given(st.data())
def test_boxes_hold_a_run_of_numbers_in_their_order(data: st.DataObject) -> None:
    from rljob_trainer.megatron.compat import core_checkpoints as pieces

    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, prod(shape))] * 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MOST", data.draw(st.integers(1, 30)))
        boxes = list(pieces.boxes(shape, start, stop))
    numbers = torch.arange(prod(shape)).view(shape)
    held = [numbers[tuple(map(slice, place, map(sum, zip(place, size, strict=True))))] for place, size in boxes]
    assert [tuple(box.shape) for box in held] == [size for _, size in boxes]
    assert [int(n) for box in held for n in box.flatten()] == list(range(start, stop))


@contextmanager
def megatrons_own() -> Iterator[None]:
    """Saves and loads as megatron does, which gathers, and cuts one tensor into layers and experts."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from rljob_trainer.megatron import checkpoint

    with pytest.MonkeyPatch.context() as patch:
        for name in METHODS:
            patch.setattr(DistributedOptimizer, name, getattr(DistributedOptimizer, name).__wrapped__)
        patch.delitem(checkpoint.CONTENT, "singleton_local_shards")
        yield


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
def test_megatron_reads_what_ranks_write_and_ranks_read_what_megatron_writes(tmp_path: Path, kind: str) -> None:
    model = make_model(tmp_path / "model", kind, tied=False)
    parallelism = {"expert": 2} if kind == "qwen3_moe" else {}
    here = job(model, dtype="bfloat16", trainer={"nodes": 2, "parallelism": parallelism})
    there = job(model, dtype="bfloat16", tensor=2)

    def save(engine: Any) -> None:
        train_step(engine, make_batch(model))
        write(engine, tmp_path / "ours")
        with megatrons_own():
            write(engine, tmp_path / "theirs")

    def load(engine: Any) -> bool:
        engine.load(tmp_path / "ours")
        expected = [t.clone() for t in moments(engine)], main_weights(engine), weights(engine)
        engine.load(tmp_path / "theirs")
        found = moments(engine), main_weights(engine), weights(engine)
        with megatrons_own():
            engine.load(tmp_path / "ours")
        return equal(expected, found) and equal(expected, (moments(engine), main_weights(engine), weights(engine)))

    assert run_engines(2, {"saved": (here, save), "loaded": (there, load)})["loaded"]


def main_weights(engine: Any) -> list[torch.Tensor]:
    optimizers = engine._policy.optimizer.chained_optimizers
    return [p.detach().clone() for o in optimizers for group in o.optimizer.param_groups for p in group["params"]]


LAYOUTS = {
    "dp2": {"data": 2},
    "tp2": {"tensor": 2},
    "pp2": {"pipeline": 2},
}


def test_no_rank_holds_much_more_than_its_own_while_it_saves_or_loads_another_layout(tmp_path: Path) -> None:
    """A save that is written alongside training needs a copy of what the rank writes; a load needs hardly anything."""
    model = tmp_path / "model"
    random_model(make_config("qwen2", 160, tied=False, **WIDE), seed=0).save_pretrained(model)
    (model / "tokenizer.json").write_text("{}")
    for before, after in (("dp2", "tp2"), ("tp2", "dp2"), ("dp2", "pp2")):
        directory = tmp_path / f"{before}-{after}"
        saved = run_ranks(2, lambda d=directory, name=before: peak_of_save(job(model, **LAYOUTS[name]), d))
        loaded = run_ranks(2, lambda d=directory, name=after: peak_of_load(job(model, **LAYOUTS[name]), d))
        for own, more in saved:
            assert more < 1.3 * own, (before, own, more)
        for own, more in loaded:
            assert own + more < 1.3 * own, (before, after, own, more)


def peak_of_save(spec: RLJobSpec, directory: Path) -> tuple[int, int]:
    """Bytes that the rank writes, and that it takes for it."""
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    more = more_at_most(lambda: write(engine, directory))
    return engine._state().copied_bytes, more


def peak_of_load(spec: RLJobSpec, directory: Path) -> tuple[int, int]:
    """Bytes of the rank's weights and optimizer states, and what loading takes besides."""
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    engine.load(directory)
    held = engine._state().networks["policy"]
    own = sum(p.nbytes for m in held.modules for p in m.parameters()) + sum(t.nbytes for t in moments(engine))
    return own, more_at_most(lambda: engine.load(directory))


def more_at_most(work: Any) -> int:
    """Bytes of the process's largest resident set while it works, over that before."""
    from rljob_trainer.megatron import memory

    memory._forget_peak()
    before = memory._peak()
    work()
    return int(memory._peak() - before)
