"""What a save and a load cost for a rank with many experts."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.megatron.models import job, make_batch, make_config, random_model, train_step
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

EXPERTS = (12, 24, 48)
"""Of a layer: fewer than a row of a matrix has numbers, as in every real model."""


def test_work_of_a_save_and_of_a_load_grows_as_experts_do(megatron: None, tmp_path: Path) -> None:
    """As many steps for each further expert, however many there are: none is compared with all others."""
    models = {count: model_of(tmp_path / f"{count}", count) for count in EXPERTS}
    found = [run_ranks(1, lambda c=count: steps_of(models[c], tmp_path / f"saved-{c}"))[0] for count in EXPERTS]
    for what in ("save", "load"):
        few, more, most = (steps[what] for steps in found)
        assert (most - more) / (EXPERTS[2] - EXPERTS[1]) < 1.1 * (more - few) / (EXPERTS[1] - EXPERTS[0]), what


def model_of(directory: Path, experts: int) -> Path:
    config = make_config("qwen3_moe", 160, tied=False, num_hidden_layers=2)
    config.num_experts, config.moe_intermediate_size = experts, 8
    random_model(config, seed=0).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def steps_of(model: Path, directory: Path) -> dict[str, int]:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(job(model), lambda: None)
    train_step(engine, make_batch(model))
    write(engine, directory / "first")
    engine.load(directory / "first")
    saved = steps_taken(lambda: write(engine, directory / "second"))
    return {"save": saved, "load": steps_taken(lambda: engine.load(directory / "second"))}


def steps_taken(work: Callable[[], Any]) -> int:
    """Functions that Python begins, and turns that its loops take, in all threads."""
    count, events = 0, sys.monitoring.events

    def step(*_: Any) -> None:
        nonlocal count
        count += 1

    kinds = (events.PY_START, events.JUMP)
    sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "steps")
    for kind in kinds:
        sys.monitoring.register_callback(sys.monitoring.PROFILER_ID, kind, step)
    sys.monitoring.set_events(sys.monitoring.PROFILER_ID, events.PY_START | events.JUMP)
    work()
    sys.monitoring.free_tool_id(sys.monitoring.PROFILER_ID)
    return count
