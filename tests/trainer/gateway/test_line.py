"""A model's requests: whatever comes when, and whatever crashes, each counts once and in order."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.service import BusyError, GatewayService, UnknownError
from rljob_trainer.wire.service import (
    CreateModel,
    DropModel,
    Failure,
    LoadState,
    OptimStep,
    Result,
    SaveState,
    Work,
    decode_result,
    decode_work,
    encode,
)

REQUESTS = 6
SPEC = ServiceSpec(checkpoint_seconds=1)


class Ranks:
    """Ranks that remember, of every model, the order of its steps: state that is saved and loaded, and lost with them."""

    def __init__(self, volume: dict[str, list[int]]) -> None:
        self._volume, self._models = volume, dict[str, list[int]]()

    def do(self, work: Work) -> Result | Failure:
        match work:
            case DropModel():
                self._models.pop(work.model, None)
            case CreateModel():
                self._models[work.model] = []
            case LoadState():
                self._models[work.model] = list(self._volume[work.path])
            case SaveState():
                assert work.path not in self._volume
                self._volume[work.path] = list(self._models[work.model])
            case OptimStep():
                self._models[work.model].append(work.seq)
                return Result(metrics={"grad_norm:mean": float(hash(tuple(self._models[work.model])))})
        return Result()

    def steps(self, model: str) -> list[int]:
        return self._models[model]


class World:
    """A gateway, its ranks, and a volume that survives both."""

    def __init__(self, root: Path) -> None:
        self._root, self.volume = root, dict[str, list[int]]()
        self.service, self.session, self.model = GatewayService(SPEC, root), "", ""
        self.ranks, self._life, self._lost = Ranks(self.volume), 0, ""

    async def begin(self) -> None:
        self.session = await self.service.open_session("ann")
        self.model = f"{self.session}:train:0"
        await self.service.create("ann", CreateModel(model=self.model, seq=0, rank=4, seed=1))

    async def ask(self, seq: int) -> None:
        await self.service.ask("ann", self.model, seq, OptimStep(model=self.model, seq=seq, learning_rate=0.1 * seq))

    async def work(self, delivered: bool = True) -> bool:
        """One piece of work. Without `delivered` the ranks do it, and the gateway never hears of it. False: there was none."""
        for book in self.service.books.values():
            book.saved_at = -1e9  # a checkpoint is due whenever one is possible
        piece = await self.service.desk.next(str(self._life), False, 0.0)
        if piece is None:
            return False
        result = self.ranks.do(decode_work(piece.work))
        if delivered:
            await self.service.desk.done(piece.ticket, encode(result))
        else:
            self._restart_gateway()
        return True

    def _restart_gateway(self) -> None:
        self.service = GatewayService(SPEC, self._root)

    def crash(self, what: str) -> None:
        if what in ("ranks", "both"):
            self.ranks, self._life = Ranks(self.volume), self._life + 1
        if what in ("gateway", "both"):
            self._restart_gateway()

    async def result(self, seq: int) -> Result | Failure | None:
        found = await self.service.book("ann", self.model).result(seq, 0.0)
        return None if found is None else decode_result(found)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, REQUESTS)),
        st.tuples(st.just("work"), st.booleans()),
        st.tuples(st.just("crash"), st.sampled_from(["gateway", "ranks", "both"])),
    ),
    max_size=40,
)


async def story(root: Path, events: list[tuple[str, object]]) -> tuple[World, dict[int, object]]:
    world, told = World(root), dict[int, object]()
    await world.begin()
    for what, which in [*events, *(("ask", seq) for seq in range(1, REQUESTS + 1))]:
        match what, which:
            case "ask", int(seq):
                await world.ask(seq)
            case "work", bool(delivered):
                await world.work(delivered)
            case "crash", str(part):
                world.crash(part)
        for seq in range(1, REQUESTS + 1):
            if seq in world.service.book("ann", world.model).line.entries and (found := await world.result(seq)):
                assert told.setdefault(seq, found.metrics) == found.metrics  # type: ignore[union-attr]
    while await world.work():
        pass
    return world, told


@given(events=EVENTS)
@settings(max_examples=30, deadline=None)
def test_every_request_counts_once_and_in_order_whatever_arrives_or_crashes_when(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, object]]
) -> None:
    async def check() -> None:
        world, told = await story(tmp_path_factory.mktemp("service"), events)
        assert world.ranks.steps(world.model) == list(range(1, REQUESTS + 1))
        for seq in range(1, REQUESTS + 1):
            expected = Result(metrics={"grad_norm:mean": float(hash(tuple(range(1, seq + 1))))}).metrics
            found = await world.result(seq)
            assert isinstance(found, Result) and found.metrics == expected == told.get(seq, expected)
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
    while await world.work():
        pass
    found = await world.result(2)
    assert isinstance(found, Failure) and "came twice, with different contents" in found.message


async def test_what_a_client_got_wrong_fails_in_its_turn_and_the_next_request_is_executed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, Failure(message="no such loss"))
    await world.ask(2)
    while await world.work():
        pass
    assert await world.result(1) == Failure(message="no such loss")
    assert world.ranks.steps(world.model) == [2]


async def test_a_step_that_the_ranks_refused_is_no_place_for_a_checkpoint_which_has_no_gradient(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    while await world.work():
        pass
    desk, found = world.service.desk, []
    for seq, result in ((1, Failure(message="eps is 0.0")), (2, Result())):
        await world.ask(seq)
        piece = await desk.next("0", False, 0.0)
        assert piece
        await desk.done(piece.ticket, encode(result))
        drained = await desk.next("0", True, 0.0)
        found.append(drained and type(decode_work(drained.work)))
    assert found == [None, SaveState]


async def test_nobody_reaches_what_is_another_clients(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), saves="tinker://a/b")
    while await world.work():
        pass
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
    assert refused and decode_result(refused) == Failure(message="there is no tinker://a/b")


async def test_a_model_too_many_is_refused_until_a_session_ends_and_its_models_leave_the_ranks(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    for i in range(1, SPEC.max_models + 1):
        await world.service.create("ann", CreateModel(model=f"{world.session}:train:{i}", seq=0, rank=4, seed=1))
    last = await world.service.book("ann", f"{world.session}:train:{SPEC.max_models}").result(0, 0.0)
    assert last and "spec.service.maxModels" in str(decode_result(last))
    while await world.work():
        pass
    await world.service.close_session("ann", world.session)
    while await world.work():
        pass
    assert world.service.books == {} and world.ranks._models == {}
    with pytest.raises(UnknownError):
        world.service.book("ann", world.model)


async def test_too_much_that_waits_is_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.service.MOST_UNCOVERED", 10)
    world = World(tmp_path)
    await world.begin()
    with pytest.raises(BusyError):
        await world.ask(1)
