"""Saving and restoring may take longer than a rank waits for its peers, and than the operator waits for a beat, as long as they move."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.megatron.models import job
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

PATIENCE, GIVEN_UP, PIECE = 300.0, 2.0, 3 * 2**10
"""Seconds without progress; those where nothing moves; and bytes that the slow disk of rank 1 writes or reads at a time, each in some 50 ms."""


def test_all_that_saving_and_restoring_moves_is_a_beat_of_rank_0(model: Path, tmp_path: Path) -> None:
    beats, _ = run_ranks(2, lambda: on_a_rank(model, tmp_path))
    assert min(beats["save"], beats["check"]) >= 3, "the slow disk is the other rank's, and takes seconds"
    assert min(beats["load"], beats["export"]) > 20, "each tensor"


def test_what_moves_may_take_longer_than_a_rank_waits_for_its_peers() -> None:
    """By a clock that says that most of the patience passes between two looks."""

    def wait() -> int:
        from rljob_trainer.wire import collective

        looks: list[float] = []
        collective.time = SimpleNamespace(monotonic=lambda: 0.9 * PATIENCE * len(looks))  # type: ignore[assignment]

        def ten(seconds: float) -> bool:
            looks.append(seconds)
            return len(looks) == 10

        beats: list[int] = []
        collective.Ranks(PATIENCE).until(ten, lambda: len(looks), lambda: beats.append(1))
        return len(beats)

    assert run_ranks(2, wait) == [10, 10]


def test_what_moves_nothing_is_given_up_without_a_beat() -> None:
    def wait_for_rank_1() -> tuple[list[int], str]:
        from rljob_trainer.wire.collective import Ranks

        beats: list[int] = []
        ranks = Ranks(GIVEN_UP)
        with pytest.raises(RuntimeError) as caught:  # the other rank may only see that its peer has given up
            ranks.until(lambda seconds: stuck(seconds, ranks.rank == 1), lambda: 7, lambda: beats.append(1))
        return beats, type(caught.value).__name__

    found = run_ranks(2, wait_for_rank_1)
    assert [beats for beats, _ in found] == [[1], [1]], "what had moved before"
    assert "StandstillError" in [error for _, error in found]


def stuck(seconds: float, yes: bool) -> bool:
    """As a disk that does not answer."""
    time.sleep(seconds)
    return not yes


def on_a_rank(model: Path, root: Path) -> dict[str, int]:
    """The beats of each operation."""
    from rljob_trainer.checkpoint.checks import corruption
    from rljob_trainer.checkpoint.manifest import ENGINE, read_manifest
    from rljob_trainer.checkpoint.saving import Saver
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.huggingface import write_hugging_face
    from rljob_trainer.wire.collective import Ranks
    from trainer.checkpoint.saving import open_store

    beats: list[int] = []
    engine, ranks = Engine(job(model, tensor=2), lambda: beats.append(1)), Ranks(PATIENCE)
    if ranks.rank:
        slow_down()
    saver = Saver(engine, ranks, open_store(root, 1) if ranks.is_first else None)
    saver.begin(1, "digest", {}, alongside=False)
    seen = {"save": watch(beats, lambda: saver.complete(wait=True))}
    ranks.barrier()
    manifest = read_manifest(directory := root / "global_step_1")
    assert manifest
    seen["check"] = watch(beats, lambda: corruption(manifest, directory, ranks, engine.heartbeat))
    seen["load"] = watch(beats, lambda: engine.load(directory / ENGINE))
    seen["export"] = watch(beats, lambda: write_hugging_face(engine, model, root / "exported"))
    return seen


def slow_down() -> None:
    from rljob_trainer.checkpoint import files

    add = files.Tally.add

    def add_late(self: files.Tally, count: int) -> None:
        time.sleep(0.05)
        add(self, count)

    files.Tally.add = add_late  # type: ignore[method-assign]
    files.BLOCK_BYTES = files.PIECE_BYTES = PIECE


def watch(beats: list[int], operation: Callable[[], Any]) -> int:
    beats.clear()
    operation()
    return len(beats)
