"""Clients in one line: none reaches, or pays for, what is another's."""

from pathlib import Path

import pytest

from rljob_trainer.gateway.clients import BusyError
from rljob_trainer.gateway.line import ENTRY_BYTES
from rljob_trainer.gateway.service import UnknownError
from rljob_trainer.wire.gateway import decode_result
from rljob_trainer.wire.service import (
    CreateModel,
    OptimStep,
    SaveForSampler,
    SaveState,
    Work,
    WorkFailure,
    WorkResult,
)
from trainer.gateway.world import (
    SPEC,
    World,
    expected,
    files,
    forward,
    the_only,
)


async def test_nobody_reaches_what_is_another_clients(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), saves="tinker://a/b")
    await world.idle()
    assert world.service.named("ann", "tinker://a/b").model == world.model
    for call in (
        lambda: world.service.book("bob", world.model),
        lambda: world.service.named("bob", "tinker://a/b"),
        lambda: world.service.hear("bob", world.session),
    ):
        with pytest.raises(UnknownError):
            call()
    other = await world.service.open_session("bob")
    await world.service.create("bob", CreateModel(model=f"{other}:train:0", seq=0, rank=4, seed=1), "tinker://a/b")
    refused = await world.service.book("bob", f"{other}:train:0").result(0, 0.0)
    assert refused and decode_result(refused) == WorkFailure(message="there is no tinker://a/b")


async def test_a_model_too_many_is_refused_until_a_session_ends_and_its_models_leave_the_ranks(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    for i in range(1, SPEC.max_models + 1):
        await world.service.create("ann", CreateModel(model=f"{world.session}:train:{i}", seq=0, rank=4, seed=1))
    last = await world.service.book("ann", f"{world.session}:train:{SPEC.max_models}").result(0, 0.0)
    assert last and "spec.service.maxModels" in str(decode_result(last))
    await world.idle()
    await world.service.close_session("ann", world.session)
    await world.idle()
    assert world.service.books == {} and world.ranks._models == {}
    with pytest.raises(UnknownError):
        world.service.book("ann", world.model)


async def test_too_much_that_waits_is_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    await world.begin()
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", 10)
    monkeypatch.setattr("rljob_trainer.gateway.clients.SPARE", 0)
    with pytest.raises(BusyError):
        await world.ask(1)


async def test_requests_of_few_bytes_count_for_what_they_take_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for one that the client never sends."""
    world = World(tmp_path)
    await world.begin()
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", 10 * ENTRY_BYTES)
    monkeypatch.setattr("rljob_trainer.gateway.clients.SPARE", 0)
    with pytest.raises(BusyError):
        for seq in range(2, 12):
            await world.service.ask("ann", world.model, seq, OptimStep(model=world.model, seq=seq, learning_rate=0.1))
    assert 6 < len(world.service.books[world.model].line.entries) < 10


async def test_results_count_for_their_client_until_they_are_dropped_and_no_other_client_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    line = world.service.books[world.model].line
    await world.idle()
    for seq in range(2, 30):
        await world.service.ask("ann", world.model, seq, forward(world.model, seq))
        await world.idle()
    assert line.uncovered == 0 and line.answers == sum(len(e.result or b"") for e in line.entries.values()) > 1000
    for module in ("books", "desk"):
        monkeypatch.setattr(f"rljob_trainer.gateway.{module}.MOST_ANSWERS", 500)
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", line.size)
    monkeypatch.setattr("rljob_trainer.gateway.clients.SPARE", 0)
    with pytest.raises(BusyError):
        await world.ask(30)
    await world.visit(ends=False)
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", line.size + 5_000)
    await world.ask(30)
    await world.idle()
    assert line.answers == sum(len(e.result or b"") for e in line.entries.values()) <= 500
    assert line.is_lost(2) and not line.is_lost(30) and isinstance(await world.result(30), WorkResult)


async def test_results_that_nobody_fetches_are_dropped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    await world.idle()
    line = world.service.books[world.model].line
    await world.service.sweep()
    assert not line.is_lost(1)
    monkeypatch.setattr("rljob_trainer.gateway.service.GRACE_SECONDS", -1.0)
    await world.service.sweep()
    assert line.is_lost(1)


@pytest.mark.parametrize("kind", [CreateModel, OptimStep, SaveState, SaveForSampler])
async def test_what_the_ranks_still_do_for_a_session_that_has_ended_counts_for_nothing(
    tmp_path: Path, kind: type[Work]
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.idle()
    await world.visit(ends=False)
    guest = f"{world.guest}:train:0"
    await world.service.ask("bob", guest, 2, SaveForSampler(model=guest, seq=2, path=""), f"{world.guest}:sample:0")
    while not isinstance(await world.offered(), kind):
        await world.work()
    await world.work(meanwhile=True)
    assert files(tmp_path) == {f"models/{world.model.replace(':', '-')}.log"}
    await world.ask(1)
    await world.idle()
    assert getattr(await world.result(1), "metrics", None) == expected(1).metrics


async def test_a_model_whose_session_ended_in_a_crash_does_not_come_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    path = the_only(tmp_path, "*/models/*.log")
    content = path.read_bytes()
    await world.service.close_session("ann", world.session)
    path.write_bytes(content)
    world.crash("gateway")
    assert world.service.books == {} and files(tmp_path) == set()
