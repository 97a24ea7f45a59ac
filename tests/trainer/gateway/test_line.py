"""A model's requests: whatever comes when, and whatever crashes, each counts once and in order."""

import asyncio
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.claim import SIZE, Claim, GatewaySuperseded
from rljob_trainer.gateway.journal import Journal, JournalDamaged, JournalRecord
from rljob_trainer.gateway.memory import BusyError
from rljob_trainer.gateway.service import GatewayService, UnknownError
from rljob_trainer.wire.sample import SampleRequest
from rljob_trainer.wire.service import (
    CreateModel,
    Datum,
    Failure,
    ForwardBackward,
    KeepModels,
    LoadState,
    OptimStep,
    Result,
    SaveForSampler,
    SaveState,
    Work,
    decode_result,
    decode_work,
    encode,
)

REQUESTS = 6
SNAPSHOT, PASS = 3, 5
"""Those that change nothing."""
STEPS = [seq for seq in range(1, REQUESTS + 1) if seq not in (SNAPSHOT, PASS)]
SPEC = ServiceSpec(checkpoint_seconds=3600)


def forward(model: str, seq: int) -> ForwardBackward:
    datum = Datum(np.zeros(3, "<i4"), np.zeros(3, "<i8"), {})
    return ForwardBackward(model=model, seq=seq, data=(datum,), loss="cross_entropy", forward_only=True)


def files(root: Path) -> set[str]:
    """Those of models and of what the ranks have written, by their paths below the service's directory."""
    found = (path for path in root.glob("*/**/*") if path.is_file() or path.parent.parent.parent == root)
    return {re.sub("^journals-[0-9a-f]+/", "", str(path.relative_to(root))) for path in found} - {"service.log"}


def the_only(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can become larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def metrics(steps: list[int]) -> Result:
    return Result(metrics={"grad_norm:mean": float(hash(tuple(steps)))})


def expected(seq: int) -> Result:
    return Result() if seq == SNAPSHOT else metrics([step for step in STEPS if step <= seq])


class Ranks:
    """Ranks that remember, of every model, the order of its steps: state that is saved and loaded, and lost with them."""

    def __init__(self, volume: dict[str, list[int]]) -> None:
        self._volume, self._models = volume, dict[str, list[int]]()

    def do(self, work: Work) -> Result | Failure:
        match work:
            case KeepModels():
                self._models = {name: steps for name, steps in self._models.items() if name in work.models}
            case CreateModel():
                assert work.model not in self._models and len(self._models) < SPEC.max_models
                self._models[work.model] = []
            case LoadState():
                self._models[work.model] = list(self._volume[Path(work.path).name])
            case SaveState() | SaveForSampler():
                assert Path(work.path).name not in self._volume
                self._volume[Path(work.path).name] = list(self._models[work.model])
                Path(work.path).mkdir(parents=True)
            case OptimStep():
                self._models[work.model].append(work.seq)
                return metrics(self._models[work.model])
            case ForwardBackward():
                return metrics(self._models[work.model])
        return Result()

    def steps(self, model: str) -> list[int]:
        return self._models[model]


class World:
    """A gateway, its ranks, and a volume that survives both."""

    def __init__(self, root: Path) -> None:
        self._root, self.volume = root, dict[str, list[int]]()
        self.service, self.session, self.model = GatewayService(SPEC, root), "", ""
        self.ranks, self._life, self.guest = Ranks(self.volume), 0, ""

    async def begin(self, start: str = "") -> None:
        self.session = await self.service.open_session("ann")
        self.model = f"{self.session}:train:0"
        await self.service.create("ann", CreateModel(model=self.model, seq=0, rank=4, seed=1), start)

    async def ask(self, seq: int) -> None:
        work: Work = OptimStep(model=self.model, seq=seq, learning_rate=0.1 * seq)
        if seq == SNAPSHOT:
            work = SaveForSampler(model=self.model, seq=seq, path="")
        if seq == PASS:
            work = forward(self.model, seq)
        await self.service.ask("ann", self.model, seq, work, f"{self.session}:sample:0" if seq == SNAPSHOT else "")

    async def visit(self, ends: bool) -> None:
        """Another client comes, which steps its model; or what came ends."""
        if ends and self.guest:
            await self.service.close_session("bob", self.guest)
            self.guest = ""
        elif not ends and not self.guest:
            self.guest = await self.service.open_session("bob")
            model = f"{self.guest}:train:0"
            await self.service.create("bob", CreateModel(model=model, seq=0, rank=4, seed=1))
            await self.service.ask("bob", model, 1, OptimStep(model=model, seq=1, learning_rate=0.1))

    async def offered(self) -> Work | None:
        """The work that comes next, which stays the same until it is done."""
        for book in self.service.books.values():
            book.saved_at = -1e9  # a checkpoint is due whenever one is possible
        piece = await self.service.desk.next(str(self._life), False, 0.0)
        return decode_work(piece.work) if piece else None

    async def work(self, delivered: bool = True, full: int | None = None, meanwhile: bool | None = None) -> bool:
        """One piece of work. False: there was none.

        Args:
            delivered: else the ranks do it, and the gateway never hears of it
            full: no file can become larger than this when the gateway hears first
            meanwhile: what the other client does before that
        """
        await self.offered()
        piece = await self.service.desk.next(str(self._life), False, 0.0)
        if piece is None:
            return False
        result = encode(self.ranks.do(decode_work(piece.work)))
        if meanwhile is not None:
            await self.visit(meanwhile)
        if not delivered:
            self._restart_gateway()
        elif full is not None:
            with suppress(OSError), full_disk(full):
                await self.service.desk.done(piece.ticket, result)
        await self.service.desk.done(piece.ticket, result)
        return True

    async def idle(self) -> None:
        while await self.work():
            pass

    def move(self, root: Path) -> None:
        """The volume is mounted elsewhere, and everybody begins anew."""
        self._root = self._root.rename(root)
        self.crash("both")

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
@settings(max_examples=30, deadline=None)
def test_every_request_counts_once_and_in_order_whatever_arrives_or_crashes_when(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, object]]
) -> None:
    async def check() -> None:
        world, first = await story(tmp_path_factory.mktemp("service"), events)
        assert world.ranks.steps(world.model) == STEPS
        for seq in range(1, REQUESTS + 1):
            found = await world.result(seq)
            assert isinstance(found, Result) and found.metrics == expected(seq).metrics == first.get(seq, found.metrics)
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
    assert isinstance(found, Failure) and "came twice, with different contents" in found.message


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
    await world.service.ask("ann", world.model, 1, Failure(message="no such loss"))
    await world.ask(2)
    await world.idle()
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
    assert refused and decode_result(refused) == Failure(message="there is no tinker://a/b")


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
    monkeypatch.setattr("rljob_trainer.gateway.memory.MOST_OF_CLIENT", 10)
    monkeypatch.setattr("rljob_trainer.gateway.memory.SPARE", 0)
    with pytest.raises(BusyError):
        await world.ask(1)


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
    monkeypatch.setattr("rljob_trainer.gateway.memory.MOST_OF_CLIENT", line.answers)
    monkeypatch.setattr("rljob_trainer.gateway.memory.SPARE", 0)
    with pytest.raises(BusyError):
        await world.ask(30)
    await world.visit(ends=False)
    monkeypatch.setattr("rljob_trainer.gateway.memory.MOST_OF_CLIENT", 10_000)
    await world.ask(30)
    await world.idle()
    assert line.answers == sum(len(e.result or b"") for e in line.entries.values()) <= 500
    assert line.is_lost(2) and not line.is_lost(30) and isinstance(await world.result(30), Result)


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


async def test_a_client_that_only_runs_forward_passes_goes_on_for_ever_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.memory.MOST_OF_CLIENT", 5000)
    monkeypatch.setattr("rljob_trainer.gateway.memory.SPARE", 0)
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
    monkeypatch.setattr("rljob_trainer.gateway.memory.MOST_OF_CLIENT", 10)
    monkeypatch.setattr("rljob_trainer.gateway.memory.SPARE", 0)
    await world.ask(1)
    line = world.service.book("ann", world.model).line
    assert line.uncovered == 0 and not any(entry.body for entry in line.entries.values())
    assert isinstance(before, Failure) and before == await world.result(1) == await world.result(2)


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


def test_a_record_that_did_not_fit_takes_none_of_the_later_ones_with_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.log")
    journal.append(JournalRecord({"n": 1}))
    with pytest.raises(OSError, match="large"), full_disk(100):
        journal.append(JournalRecord({"n": 2}, bytes(1000)))
    journal.append(JournalRecord({"n": 3}))
    journal = Journal(tmp_path / "a.log")
    assert [record.fields["n"] for record in journal.records] == [1, 3]
    with pytest.raises(OSError, match="large"), full_disk(100):
        journal.replace([JournalRecord({"n": 4}, bytes(1000))])
    journal.append(JournalRecord({"n": 5}))
    assert [record.fields["n"] for record in Journal(tmp_path / "a.log").records] == [1, 3, 5]


@pytest.mark.parametrize("name", ["*/service.log", "*/models/*.log"])
async def test_a_gateway_does_not_go_on_without_a_record_that_is_damaged(tmp_path: Path, name: str) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), "tinker://a/b")
    await world.ask(2)
    await world.idle()
    before = files(tmp_path)
    whole = the_only(tmp_path, name).read_bytes()
    for place in range(len(whole)):
        path = the_only(tmp_path, name)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(JournalDamaged, match=rf"{path.name} is damaged at byte \d+ of {len(whole)}.*truncate -s"):
            GatewayService(SPEC, tmp_path)
    assert files(tmp_path) == before
    the_only(tmp_path, name).write_bytes(whole)
    world.crash("both")
    await world.idle()
    assert files(tmp_path) == before and world.service.named("ann", "tinker://a/b")


def test_only_a_last_record_that_is_incomplete_is_cut_off(tmp_path: Path) -> None:
    path, first, last = tmp_path / "a.log", JournalRecord({"n": 1}, b"one"), JournalRecord({"n": 2}, b"two")
    Journal(path).append(first)
    size = path.stat().st_size
    Journal(path).append(last)
    whole = path.read_bytes()
    for end in range(size, len(whole)):
        path.write_bytes(whole[:end])
        assert Journal(path).records == [first] and path.stat().st_size == size


async def test_a_service_whose_volume_is_mounted_elsewhere_has_all_that_it_had(tmp_path: Path) -> None:
    root = tmp_path / "here"
    world = World(root)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), "tinker://a/b")
    for seq in (2, 3, 4):
        await world.ask(seq)
    await world.service.ask(
        "ann", world.model, 5, LoadState(model=world.model, seq=5, path="tinker://a/b", optimizer=True)
    )
    await world.idle()
    before = files(root)
    world.move(tmp_path / "there")
    await world.idle()
    assert files(tmp_path / "there") == before
    assert world.ranks.steps(world.model) == [] and world.service.desk.mismatches == 0
    sampler = world.service.sampler("ann", f"{world.session}:sample:0")
    asked = SampleRequest(tokens=[1], n=1, seed=1, max_tokens=1)
    adapter = sampler.of(asked, world.service.files.root).adapter
    assert sampler.directory in before and adapter
    assert adapter.directory == str(tmp_path / "there" / sampler.directory)


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
    assert await world.result(2) == Failure(message="there is no a/b")
    await world.service.close_session("ann", world.session)
    assert directory not in files(tmp_path)


async def ended_while(world: World, works: list[type[Work]]) -> None:
    """The ranks end with each of these pieces, as soon as it comes."""
    for kind in works:
        while not isinstance(await world.offered(), kind):
            assert await world.work()
        world.crash("ranks")
    await world.idle()


async def test_requests_with_which_an_attempt_each_has_ended_are_done_all_the_same(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.idle()
    await world.ask(1)
    await ended_while(world, [OptimStep])
    await world.ask(2)
    await ended_while(world, [OptimStep])
    for seq in (SNAPSHOT, 4):
        await world.ask(seq)
    await world.idle()
    world.crash("both")
    await world.idle()
    assert [getattr(await world.result(seq), "metrics", None) for seq in (1, 2, 4)] == [
        expected(seq).metrics for seq in (1, 2, 4)
    ]


@pytest.mark.parametrize("both", [False, True])
async def test_what_the_ranks_cannot_do_is_given_up_with_a_reason(tmp_path: Path, both: bool) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.idle()
    for seq in (1, 2, SNAPSHOT, 4):
        await world.ask(seq)
    await ended_while(world, [OptimStep, OptimStep])
    world.crash("both" if both else "ranks")
    await world.idle()
    failed = await world.result(1)
    assert isinstance(failed, Failure) and failed.category == "server"
    assert failed.message.startswith(f"the ranks have ended 2 times while they did request 1 of {world.model}")
    assert (
        world.ranks.steps(world.model) == [2, 4]
        and getattr(await world.result(4), "metrics", None) == metrics([2, 4]).metrics
    )


@pytest.mark.parametrize("kind", [CreateModel, OptimStep])
async def test_a_model_that_the_ranks_cannot_have_again_fails_and_they_go_on_with_the_others(
    tmp_path: Path, kind: type[Work]
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    desk = world.service.desk
    while piece := await desk.next("0", False, 0.0):
        await desk.done(piece.ticket, encode(world.ranks.do(decode_work(piece.work))))
    world.crash("ranks")
    await ended_while(world, [kind, kind])
    await world.ask(2)
    found = await world.result(2)
    assert isinstance(found, Failure) and "have ended 2 times" in found.message
    await world.visit(ends=False)
    await world.idle()
    assert world.ranks.steps(f"{world.guest}:train:0") == [1] and list(world.ranks._models) == [
        f"{world.guest}:train:0"
    ]


@pytest.mark.parametrize("kind", [CreateModel, LoadState])
async def test_a_model_with_a_checkpoint_waits_for_ranks_that_can_have_it_while_they_go_on_with_the_others(
    tmp_path: Path, kind: type[Work]
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    await world.idle()
    world.crash("ranks")
    await ended_while(world, [kind, kind])
    await world.ask(2)
    await world.visit(ends=False)
    await world.idle()
    assert list(world.ranks._models) == [f"{world.guest}:train:0"] and await world.result(2) is None
    world.service.books[world.model].not_before = 0.0
    await world.idle()
    assert world.ranks.steps(world.model) == [1, 2]
    assert getattr(await world.result(2), "metrics", None) == expected(2).metrics


async def test_a_checkpoint_that_the_ranks_cannot_read_once_is_read_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    await world.idle()
    world.crash("ranks")
    await world.ask(2)
    while not isinstance(await world.offered(), LoadState):
        assert await world.work()
    piece = await world.service.desk.next("1", False, 0.0)
    assert piece
    await world.service.desk.done(piece.ticket, encode(Failure(message="the volume does not answer")))
    await world.idle()
    assert world.ranks._models == {} and await world.result(2) is None
    world.service.books[world.model].not_before = 0.0
    await world.idle()
    assert world.ranks.steps(world.model) == [1, 2]
    assert getattr(await world.result(2), "metrics", None) == expected(2).metrics


@pytest.mark.parametrize("failed", [0, 1])
async def test_attempts_that_their_ranks_did_not_end_do_not_count_against_the_work_that_they_had(
    tmp_path: Path, failed: int
) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.ask(1)
    desk = world.service.desk
    for attempt in range(1, 5):  # the first may have failed; the others lost their nodes
        while piece := await desk.next(str(attempt), False, 0.0, attempt, failed if attempt > 1 else 0):
            if isinstance(decode_work(piece.work), OptimStep):
                break
            await desk.done(piece.ticket, encode(Result()))
    assert await world.result(1) is None
    assert await desk.next("5", False, 0.0, 5, 4)
    found = await world.result(1)
    assert (found is None) if failed == 0 else isinstance(found, Failure)


@pytest.mark.parametrize("how", ["ended", "failed"])
async def test_ranks_have_no_model_that_ended_or_failed_even_if_the_gateway_forgot_it(tmp_path: Path, how: str) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.visit(ends=False)
    await world.idle()
    guest = f"{world.guest}:train:0"
    if how == "ended":
        await world.visit(ends=True)
        world.crash("gateway")
    else:
        await world.service.ask("bob", guest, 1, Failure(message="another one"))
    await world.idle()
    assert list(world.ranks._models) == [world.model]


async def test_what_a_crash_left_on_the_volume_goes_with_the_next_epoch_and_what_is_used_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), "tinker://a/b")
    await world.ask(2)
    await world.idle()
    used = files(tmp_path)
    orphans = [
        "states/x-train-0/3-ab",
        "snapshots/x-train-0/.4-cd.tmp",
        f"checkpoints/{world.model.replace(':', '-')}/9-ef",
    ]
    for orphan in orphans:
        (tmp_path / orphan / "inside").mkdir(parents=True)
    world.crash("gateway")
    assert used < files(tmp_path), "ranks may still write until they ask for work"
    await world.idle()
    assert files(tmp_path) == used and not (tmp_path / "states/x-train-0").exists()


async def test_the_former_directory_of_a_name_goes_when_the_name_is_saved_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    found = []
    for seq in (1, 2):
        await world.service.ask("ann", world.model, seq, SaveState(model=world.model, seq=seq, path=""), "tinker://a/b")
        await world.idle()
        found.append(tmp_path / world.service.named("ann", "tinker://a/b").directory)
    assert [path.is_dir() for path in found] == [False, True]


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


async def test_a_gateway_that_another_one_has_followed_acknowledges_nothing_more(tmp_path: Path) -> None:
    former = GatewayService(SPEC, tmp_path)
    session = await former.open_session("anybody")
    await former.create("anybody", CreateModel(model=f"{session}:train:0", seq=0, rank=4, seed=1))
    latter = GatewayService(SPEC, tmp_path)
    for write in (
        former.open_session("anybody"),
        former.close_session("anybody", session),
        former.ask("anybody", f"{session}:train:0", 1, OptimStep(model=f"{session}:train:0", seq=1, learning_rate=0.1)),
    ):
        with pytest.raises(GatewaySuperseded):
            await write
    await latter.ask(
        "anybody", f"{session}:train:0", 1, OptimStep(model=f"{session}:train:0", seq=1, learning_rate=0.1)
    )
    again = GatewayService(SPEC, tmp_path)
    assert list(again.names.sessions) == [session] and list(again.books[f"{session}:train:0"].line.entries) == [0, 1]


def test_a_gateway_that_was_named_before_cannot_take_the_claim_back(tmp_path: Path) -> None:
    latter = Claim(tmp_path, "job", 3)
    with pytest.raises(GatewaySuperseded, match="claimed by gateway 3 of this job, and this is 2"):
        Claim(tmp_path, "job", 2)
    latter.check()
    again = Claim(tmp_path, "job", 3)
    with pytest.raises(GatewaySuperseded, match="another gateway has claimed"):
        latter.check()
    again.release()
    with pytest.raises(GatewaySuperseded, match="claimed by gateway 3"):
        Claim(tmp_path, "job", 2)
    Claim(tmp_path, "job", 4).check()


@pytest.mark.parametrize("first", ["job", ""])
def test_another_job_has_the_directory_only_once_the_gateway_of_the_first_has_ended(tmp_path: Path, first: str) -> None:
    owner = Claim(tmp_path, first, 3)
    with pytest.raises(
        GatewaySuperseded, match=r"choose another spec.checkpoint.path; or, .* delete the file \S+owner"
    ):
        Claim(tmp_path, "other", 9)
    owner.check()
    owner.release()
    Claim(tmp_path, "other", 1).check()


async def test_a_former_gateway_between_its_check_and_what_it_does_then_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.begin()
    for seq in (1, 2):
        await world.ask(seq)
    await world.idle()
    former, name, before = world.service, world.model, files(tmp_path)
    latter = list[GatewayService]()
    real = former.claim.check

    def followed() -> None:
        real()
        if not latter:
            latter.append(GatewayService(SPEC, tmp_path))

    monkeypatch.setattr(former.books[name]._journal, "_check", followed)
    with pytest.raises(FileNotFoundError):
        await former.books[name].checkpointed(2, "checkpoints/x/2-ab")
    with pytest.raises(GatewaySuperseded):
        await former._collect()
    world.service = latter[0]
    await world.ask(4)
    world.crash("both")
    assert files(tmp_path) == before and list(world.service.books[name].line.entries)[-1] == 4


async def test_a_gateway_starts_and_sweeps_on_a_full_volume(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    await world.service.ask("ann", world.model, 1, SaveState(model=world.model, seq=1, path=""), "tinker://a/b")
    await world.idle()
    while the_only(tmp_path, "*/service.log").stat().st_size < 2 * SIZE:
        await world.service.open_session("bob")
    with full_disk(SIZE):
        world.crash("gateway")
        world.service.spec = SPEC.model_copy(update={"session_timeout_seconds": -1})
        await world.service.sweep()
        assert world.service.named("ann", "tinker://a/b")
    world.service.hear("ann", world.session)
    await world.service.sweep()
    with pytest.raises(UnknownError):
        world.service.hear("ann", world.session)
