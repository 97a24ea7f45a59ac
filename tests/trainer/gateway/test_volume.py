"""What a service has on its volume: journals, directories of models, and which gateway owns them."""

import asyncio
import itertools
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from rljob_api.callbacks import nothing
from rljob_trainer.gateway.files import SIZE, Claim, GatewaySuperseded
from rljob_trainer.gateway.journal import Journal, JournalDamaged, JournalRecord
from rljob_trainer.gateway.registry import Names
from rljob_trainer.gateway.service import GatewayService, UnknownError
from rljob_trainer.wire.rollout_server import SampleRequest
from rljob_trainer.wire.service import (
    CreateModel,
    LoadState,
    OptimStep,
    SaveState,
)
from trainer.gateway.world import (
    SPEC,
    World,
    files,
    full_disk,
    the_only,
)


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


@pytest.mark.parametrize("moment", [2, 3], ids=["before it is written", "after it is written"])
async def test_a_record_that_nobody_waits_for_any_more_takes_none_of_the_later_ones_with_it(
    tmp_path: Path, moment: int
) -> None:
    """A gateway that ends cancels what it is doing, while it still answers others. `moment`: the check at which the record's thread stands still."""
    begun, may_go_on, checks = threading.Event(), threading.Event(), itertools.count()

    def check() -> None:
        if next(checks) == moment:
            begun.set()
            may_go_on.wait()

    names = Names(tmp_path / "a.log", check)
    given_up = asyncio.create_task(names.open("given up", "ann", 0.0))
    await asyncio.to_thread(begun.wait)
    given_up.cancel()
    with suppress(asyncio.CancelledError):
        await given_up
    answered = asyncio.create_task(names.open("answered", "ann", 0.0))
    await asyncio.wait({answered}, timeout=0.5)
    may_go_on.set()
    await answered
    await names.open("later", "ann", 0.0)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert {"answered", "later"} <= Names(tmp_path / "a.log", nothing).sessions.keys()


async def test_a_journal_that_is_removed_while_a_thread_writes_it_anew_is_gone(tmp_path: Path) -> None:
    """The thread's task may have been cancelled: nobody waits for it."""
    begun, may_go_on = threading.Event(), threading.Event()

    def check() -> None:
        if journals:
            begun.set()
            may_go_on.wait()

    journals = list[Journal]()
    journals.append(Journal(tmp_path / "models/a.log", check))
    writing = asyncio.create_task(asyncio.to_thread(journals[0].replace, [JournalRecord({"n": 1})]))
    await asyncio.to_thread(begun.wait)
    removing = asyncio.create_task(asyncio.to_thread(journals[0].remove))
    await asyncio.wait({removing}, timeout=0.5)
    may_go_on.set()
    await asyncio.gather(writing, removing)
    assert files(tmp_path) == set()


def test_a_journal_that_was_removed_is_written_no_more(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.log")
    journal.append(JournalRecord({"n": 1}))
    journal.remove()
    with pytest.raises(ValueError, match="closed"):
        journal.replace([JournalRecord({"n": 2})])
    assert not list(tmp_path.iterdir())


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


async def test_a_journal_of_names_holds_what_there_is_and_not_all_that_there_ever_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.registry.GROWTH", 2000)
    world = World(tmp_path)
    await world.begin()
    await world.service.sample_from("ann", f"{world.session}:sample:0")
    for _ in range(200):
        await world.service.close_session("bob", await world.service.open_session("bob"))
        assert the_only(tmp_path, "*/service.log").stat().st_size < 3500
    last = await world.service.open_session("bob")
    world.crash("gateway")
    assert list(world.service.names.sessions) == [world.session, last]
    assert list(world.service.names.samplers) == [f"{world.session}:sample:0"]


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


@pytest.mark.parametrize("what", ["its last checkpoint", "a state of the client"])
async def test_what_ranks_load_for_a_session_that_ends_goes_once_they_have_it(tmp_path: Path, what: str) -> None:
    world = World(tmp_path)
    await world.begin()
    for seq in (1, 2):
        await world.ask(seq)
    await world.idle()
    if what == "its last checkpoint":
        world.crash("ranks")
    else:
        await world.service.ask("ann", world.model, 3, SaveState(model=world.model, seq=3, path=""), "tinker://a/b")
        load = LoadState(model=world.model, seq=4, path="tinker://a/b", optimizer=True)
        await world.service.ask("ann", world.model, 4, load)
    offered = await world.offered()
    while not isinstance(offered, LoadState):
        await world.work()
        offered = await world.offered()
    if what == "a state of the client":
        await world.service.delete("ann", "tinker://a/b")
    await world.service.close_session("ann", world.session)
    await world.service.sweep()
    loaded = str(Path(offered.path).relative_to(tmp_path))
    assert loaded in files(tmp_path), "ranks would end whose files are gone"
    await world.work()
    await world.service.sweep()
    assert loaded not in files(tmp_path)


async def test_ranks_get_no_work_of_a_session_that_has_ended_while_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ann's and Bob's models each load a state of their own. While Bob's journal is written, Ann deletes hers, and ends her session."""
    world = World(tmp_path)
    await world.begin()
    bobs = await world.service.open_session("bob")
    guest = f"{bobs}:train:0"
    await world.service.create("bob", CreateModel(model=guest, seq=0, rank=4, seed=1))
    for client, model in (("ann", world.model), ("bob", guest)):
        await world.service.ask(client, model, 1, SaveState(model=model, seq=1, path=""), f"tinker://{client}/b")
    await world.idle()
    begun, may_go_on = threading.Event(), threading.Event()

    def check() -> None:
        begun.set()
        may_go_on.wait()

    for client, model in (("ann", world.model), ("bob", guest)):
        load = LoadState(model=model, seq=2, path=f"tinker://{client}/b", optimizer=True)
        await world.service.ask(client, model, 2, load)
    monkeypatch.setattr(world.service.books[guest]._journal, "_check", check)
    offered = asyncio.create_task(world.offered())
    await asyncio.to_thread(begun.wait)
    await world.service.delete("ann", "tinker://ann/b")
    await world.service.close_session("ann", world.session)
    may_go_on.set()
    work = await offered
    while not isinstance(work, LoadState):
        await world.work()
        work = await world.offered()
    assert work.model == guest and str(Path(work.path).relative_to(tmp_path)) in files(tmp_path)


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
        await former.collect()
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
