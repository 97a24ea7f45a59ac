"""What one client may have of a service, next to others: models, files, and a part of the ranks' time."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.service import ClientLimits, ServiceClient, ServiceSpec
from rljob_trainer.gateway.clients import BusyError, FairShares
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.wire.gateway import decode_result
from rljob_trainer.wire.service import CreateModel, SaveState, WorkFailure
from trainer.gateway.world import World

SPEC = ServiceSpec(
    checkpoint_seconds=3600,
    limits=ClientLimits(max_models=1, max_saved=2),
    clients=[ServiceClient(name="bob", max_models=2)],
)


DONE = ""


def outcome(result: bytes | None) -> str | None:
    """DONE, or why it failed. None: there is no result."""
    found = decode_result(result) if result else None
    return found.message if isinstance(found, WorkFailure) else found and DONE


async def models(world: World, client: str, count: int) -> list[str | None]:
    """What comes of so many models of a new session of the client."""
    session = await world.service.open_session(client)
    made = [f"{session}:train:{i}" for i in range(count)]
    for model in made:
        await world.service.create(client, CreateModel(model=model, seq=0, rank=4, seed=1))
    await world.idle()
    return [outcome(await world.service.book(client, model).result(0, 0.0)) for model in made]


async def save(world: World, seq: int, name: str) -> str | None:
    path = f"tinker://{world.model}/weights/{name}"
    await world.service.ask("ann", world.model, seq, SaveState(model=world.model, seq=seq, path=""), path)
    await world.idle()
    return outcome(await world.service.book("ann", world.model).result(seq, 0.0))


async def test_every_client_has_models_of_its_own_number_and_in_all_no_more_than_the_service(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC.model_copy(update={"max_models": 4}))
    one = "ann trains 1 models at a time (spec.service.limits.maxModels): end another session first"
    two = "bob trains 2 models at a time (spec.service.clients[bob].maxModels): end another session first"
    assert await models(world, "ann", 2) == [DONE, one]
    assert await models(world, "ann", 1) == [one], "of all its sessions"
    assert await models(world, "bob", 3) == [DONE, DONE, two]
    assert await models(world, "eve", 1) == [DONE]
    (refused,) = await models(world, "dan", 1)
    assert refused and "(spec.service.maxModels)" in refused
    for session in list(world.service.names.sessions):
        if world.service.names.sessions[session].client == "ann":
            await world.service.close_session("ann", session)
    assert await models(world, "ann", 1) == [DONE]


async def test_no_client_takes_all_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.service.MOST_OF_CLIENT", 2)
    service = GatewayService(ServiceSpec(), tmp_path)
    first, _ = [await service.open_session("ann") for _ in range(2)]
    with pytest.raises(BusyError, match="this client has 2 sessions"):
        await service.open_session("ann")
    assert await service.open_session("bob")
    await service.close_session("ann", first)
    assert await service.open_session("ann")


async def test_a_client_that_has_saved_enough_deletes_something_or_saves_under_an_old_name(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    await world.begin()
    assert (await save(world, 1, "a"), await save(world, 2, "b")) == (DONE, DONE)
    full = "ann has saved 2 states and snapshots, and 2 is the most (spec.service.limits.maxSaved): delete one first"
    assert await save(world, 3, "c") == full
    assert await save(world, 4, "a") == DONE
    await world.service.delete("ann", f"tinker://{world.model}/weights/b")
    assert await save(world, 3, "c") == full, "the same request"
    assert await save(world, 5, "c") == DONE
    world.crash("both")
    await world.idle()
    assert outcome(await world.service.book("ann", world.model).result(3, 0.0)) == full
    assert {path.rpartition("/")[2] for path in world.service.names.saved} == {"a", "c"}


@given(
    shares=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    counts=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    costs=st.lists(st.integers(1, 50), min_size=16, max_size=16),
)
def test_clients_get_tokens_by_their_shares_however_many_models_they_have_and_whatever_each_costs(
    shares: list[int], counts: list[int], costs: list[int]
) -> None:
    turns, spent, models = FairShares(), Counter[str](), Counter[str]()
    ready = {f"{client}:{i}": str(client) for client in range(len(shares)) for i in range(counts[client])}
    cost = dict(zip(sorted(ready), costs, strict=False))
    for _ in range(400):
        model = turns.choose(ready)
        assert model is not None
        turns.spend(model, cost[model], lambda client: shares[int(client)])
        spent[ready[model]] += cost[model]
        models[model] += cost[model]
    had = [spent[str(client)] / share for client, share in enumerate(shares)]
    assert max(had) - min(had) <= 50, "one piece of work, which is not cut"
    for client in ready.values():
        of_client = [models[model] for model, owner in ready.items() if owner == client]
        assert max(of_client) - min(of_client) <= 50


def test_a_client_is_not_owed_what_others_had_while_it_had_no_work_even_if_it_left_meanwhile() -> None:
    turns = FairShares()
    for _ in range(100):
        assert turns.choose({"a": "ann"}) == "a"
        turns.spend("a", 10, lambda client: 1)
    both = {"a": "ann", "b": "bob"}
    order = list[str]()
    for i in range(40):
        model = turns.choose(both) or ""
        order.append(model)
        turns.spend(model, 10, lambda client: 1)
        if i % 10 == 9:
            turns.forget("b")
    assert abs(order.count("a") - order.count("b")) <= 4
    turns.forget("b")
    turns.spend("b", 10, lambda client: 1)
    assert turns.choose({}) is None
