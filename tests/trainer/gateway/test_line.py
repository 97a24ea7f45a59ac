"""A model's requests: whatever comes when, and whatever crashes, each counts once and in order."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_trainer.gateway.main import service_report
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.rollout_client import ReplicaLost
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest
from rljob_trainer.wire.service import (
    CreateModel,
    KeepModels,
    LoadState,
    OptimStep,
    SaveState,
    WorkFailure,
    WorkResult,
)
from trainer.gateway.world import (
    REQUESTS,
    SNAPSHOT,
    STEPS,
    World,
    expected,
    files,
    forward,
    full_disk,
    metrics,
    the_only,
)

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, REQUESTS)),
        st.tuples(st.just("work"), st.booleans()),
        st.tuples(st.just("full"), st.integers(0, 2000)),
        st.tuples(st.just("meanwhile"), st.booleans()),
        st.tuples(st.just("visit"), st.booleans()),
        st.tuples(st.just("crash"), st.sampled_from(["gateway", "ranks", "both"])),
    ),
    max_size=40,
)


async def story(root: Path, events: list[tuple[str, object]]) -> tuple[World, dict[int, object]]:
    world, first = World(root), dict[int, object]()
    await world.begin()
    for what, which in [*events, *(("ask", seq) for seq in range(1, REQUESTS + 1))]:
        match what, which:
            case "ask", int(seq):
                await world.ask(seq)
            case "work", bool(delivered):
                await world.work(delivered)
            case "full", int(size):
                with suppress(OSError), full_disk(size):
                    await world.ask(size % REQUESTS + 1)
                await world.work(full=size)
            case "meanwhile", bool(ends):
                await world.work(meanwhile=ends)
            case "visit", bool(ends):
                await world.visit(ends)
            case "crash", str(part):
                world.crash(part)
        for seq in range(1, REQUESTS + 1):
            if seq in world.service.book("ann", world.model).line.entries and (found := await world.result(seq)):
                assert first.setdefault(seq, found.metrics) == found.metrics  # type: ignore[union-attr]
    await world.idle()
    return world, first


@given(events=EVENTS)
@settings(max_examples=30)
def test_every_request_counts_once_and_in_order_whatever_arrives_or_crashes_when(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, object]]
) -> None:
    async def check() -> None:
        world, first = await story(tmp_path_factory.mktemp("service"), events)
        assert world.ranks.steps(world.model) == STEPS
        for seq in range(1, REQUESTS + 1):
            found = await world.result(seq)
            assert isinstance(found, WorkResult) and found.metrics == expected(seq).metrics == first.get(
                seq, found.metrics
            )
        assert world.service.desk.mismatches == 0

    asyncio.run(check())


async def test_a_number_that_comes_again_with_another_request_fails_the_model_and_executes_neither(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(2)
    await world.service.ask("ann", world.model, 2, OptimStep(model=world.model, seq=2, learning_rate=9.0))
    await world.ask(1)
    await world.idle()
    found = await world.result(2)
    assert isinstance(found, WorkFailure) and "came twice, with different contents" in found.message


async def test_what_cannot_be_executed_yet_waits_for_its_client_and_not_for_the_ranks(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    line = world.service.books[world.model].line
    assert line.waiting == 1
    await world.idle()
    await world.ask(2)
    assert line.waiting == 0
    await world.ask(1)
    assert line.waiting == 2
    await world.idle()
    await world.ask(4)
    assert line.waiting == 0


async def test_what_a_client_got_wrong_fails_in_its_turn_and_the_next_request_is_executed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, WorkFailure(message="no such loss"))
    await world.ask(2)
    await world.idle()
    assert await world.result(1) == WorkFailure(message="no such loss")
    assert world.ranks.steps(world.model) == [2]


async def test_a_step_that_the_ranks_refused_is_no_place_for_a_checkpoint_which_has_no_gradient(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    while await world.work():
        pass
    desk, found = world.service.desk, []
    for seq, result in ((1, WorkFailure(message="eps is 0.0")), (2, WorkResult())):
        await world.ask(seq)
        piece = await desk.next("0", False, 0.0)
        assert piece
        await desk.done(piece.ticket, encode(result))
        drained = await desk.next("0", True, 0.0)
        found.append(drained and type(decode_work(drained.work)))
    assert found == [None, SaveState]


async def test_a_client_that_only_runs_forward_passes_goes_on_for_ever_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", 25_000)
    monkeypatch.setattr("rljob_trainer.gateway.clients.SPARE", 0)
    for module in ("books", "desk"):
        monkeypatch.setattr(f"rljob_trainer.gateway.{module}.MOST_ANSWERS", 1000)
    world = World(tmp_path)
    await world.begin()
    for seq in range(1, 60):
        await world.service.ask("ann", world.model, seq, forward(world.model, seq))
        await world.idle()
    line = world.service.book("ann", world.model).line
    assert line.uncovered == 0 and line.watermark > 0
    world.crash("both")
    await world.idle()
    assert getattr(await world.result(59), "metrics", None) == metrics([]).metrics


async def test_all_models_that_are_due_get_their_checkpoints(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.visit(ends=False)
    await world.ask(1)
    desk, books = world.service.desk, list(world.service.books.values())
    while piece := await desk.next("0", False, 0.0):
        await desk.done(piece.ticket, encode(world.ranks.do(decode_work(piece.work))))
    for book in books:
        book.saved_at = -1e9
    while piece := await desk.next("0", False, 0.0):
        await desk.done(piece.ticket, encode(world.ranks.do(decode_work(piece.work))))
    assert [book.line.watermark for book in books] == [1, 1]


async def test_before_a_service_ends_a_model_is_saved_that_has_been_saved_for_its_client_since_its_step(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.begin()
    for seq in (1, 2, SNAPSHOT):
        await world.ask(seq)
    desk = world.service.desk
    while piece := await desk.next("0", False, 0.0):
        await desk.done(piece.ticket, encode(world.ranks.do(decode_work(piece.work))))
    last = await desk.next("0", True, 0.0)
    assert last and isinstance(decode_work(last.work), SaveState)


async def test_a_failed_model_keeps_no_bodies_and_has_failed_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(2)
    await world.service.ask("ann", world.model, 2, forward(world.model, 2))
    before = await world.result(2)
    world.crash("gateway")
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", 10)
    monkeypatch.setattr("rljob_trainer.gateway.clients.SPARE", 0)
    await world.ask(1)
    line = world.service.book("ann", world.model).line
    assert line.uncovered == 0 and not any(entry.body for entry in line.entries.values())
    assert isinstance(before, WorkFailure) and before == await world.result(1) == await world.result(2)


async def test_a_model_that_has_failed_keeps_none_of_the_requests_that_come_then_and_fails_each(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(2)
    await world.service.ask("ann", world.model, 2, forward(world.model, 2))
    kept, size = set(world.service.books[world.model].line.entries), the_only(tmp_path, "*/models/*.log").stat().st_size
    for seq in (1, 2, *range(3, 50)):
        await world.service.ask("ann", world.model, seq, forward(world.model, seq))
        found = await world.result(seq)
        assert isinstance(found, WorkFailure) and "came twice, with different contents" in found.message
    assert set(world.service.books[world.model].line.entries) == kept
    assert the_only(tmp_path, "*/models/*.log").stat().st_size == size


async def test_a_driver_that_comes_while_a_result_of_the_last_one_is_written_keeps_its_work(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.idle()
    await world.ask(1)
    desk = world.service.desk
    last = await desk.next("0", False, 0.0)
    assert last
    writing = asyncio.create_task(desk.done(last.ticket, encode(expected(1))))
    await asyncio.sleep(0)
    piece = await desk.next("1", False, 0.0)
    await writing
    assert piece and isinstance(decode_work(piece.work), KeepModels) and await desk.next("1", False, 0.0) == piece


async def test_a_repetition_with_another_result_is_reported_and_the_client_keeps_the_first_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    for seq in (1, 2):
        await world.ask(seq)
    await world.service.desk.next("0", True, 0.0)
    while (piece := await world.service.desk.next("0", False, 0.0)) is not None:
        await world.service.desk.done(piece.ticket, encode(world.ranks.do(decode_work(piece.work))))
    world.crash("ranks")
    while (piece := await world.service.desk.next("1", False, 0.0)) is not None:
        world.ranks.do(decode_work(piece.work))
        await world.service.desk.done(piece.ticket, encode(WorkResult(metrics={"grad_norm:mean": 0.5})))
    report = service_report(world.service, Samples(no_server, world.service.clock), 0.0)
    assert report.mismatches == 2
    assert getattr(await world.result(2), "metrics", None) == metrics([1, 2]).metrics


async def no_server(_: SampleRequest) -> SampleAnswer:
    raise ReplicaLost("there is none")


async def test_a_repeated_load_gets_what_its_name_stood_for_the_first_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    ask, load = world.service.ask, LoadState(model=world.model, seq=2, path="a/b", optimizer=True)
    await world.ask(1)
    await ask("ann", world.model, 2, load)  # there is none yet
    await ask("ann", world.model, 3, SaveState(model=world.model, seq=3, path=""), "a/b")
    await ask("ann", world.model, 4, replace(load, seq=4))
    await world.idle()
    directory = world.service.named("ann", "a/b").directory
    await world.service.delete("ann", "a/b")
    assert directory in files(tmp_path)
    other = f"{world.session}:train:1"
    await world.service.create("ann", CreateModel(model=other, seq=0, rank=4, seed=1))
    await ask("ann", other, 1, SaveState(model=other, seq=1, path=""), "a/b")
    await world.idle()
    world.crash("both")
    await world.idle()
    assert world.ranks.steps(world.model) == [1] and world.service.desk.mismatches == 0
    assert await world.result(2) == WorkFailure(message="there is no a/b")
    await world.service.close_session("ann", world.session)
    assert directory not in files(tmp_path)


async def test_results_that_were_fetched_before_a_restart_are_forgotten_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    await world.idle()
    world.crash("gateway")
    await world.idle()
    await world.service.sweep()
    line = world.service.book("ann", world.model).line
    assert line.watermark == 1 and set(line.entries) == {0, 1}
    monkeypatch.setattr("rljob_trainer.gateway.service.GRACE_SECONDS", -1.0)
    await world.service.sweep()
    assert set(line.entries) == {0}


class CountedWait:
    """Waits, and counts how often it is woken."""

    def __init__(self, waiting: Coroutine[Any, Any, Any]) -> None:
        self._waiting, self.woken = waiting, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._waiting.__await__()
        try:
            while True:
                yield next(steps)
                self.woken += 1
        except StopIteration as done:
            return done.value


async def test_a_result_wakes_only_who_waits_for_it_and_a_failure_of_the_model_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    book = world.service.books[world.model]
    for seq in (1, 2, 4):
        await world.ask(seq)
    waits = [CountedWait(book.result(seq, 600.0)) for seq in (1, 2, 4, 4)]
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.sleep(0)
    for seq in (1, 2):
        await book.answer(seq, encode(WorkResult()))
        assert await tasks[seq - 1] == encode(WorkResult())
    assert [wait.woken for wait in waits] == [1, 1, 0, 0]
    await book.fail(WorkFailure(message="gone"))
    assert await asyncio.gather(*tasks[2:]) == [encode(WorkFailure(message="gone"))] * 2
