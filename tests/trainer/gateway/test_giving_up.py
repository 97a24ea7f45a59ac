"""Work with which attempts end, and models that ranks cannot have: what is given up, and what waits."""

from pathlib import Path

import pytest

from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.service import CreateModel, LoadState, OptimStep, Work, WorkFailure, WorkResult
from trainer.gateway.world import (
    SNAPSHOT,
    World,
    expected,
    metrics,
)


async def ended_while(world: World, works: list[type[Work]]) -> None:
    """The ranks end with each of these pieces, as soon as it comes."""
    for kind in works:
        while not isinstance(await world.offered(), kind):
            assert await world.work()
        world.crash("ranks")
    await world.idle()


async def require_made_after_its_pause(world: World) -> None:
    """The ranks get the model when they are given it again, and do what has waited."""
    world.service.books[world.model].not_before = 0.0
    await world.idle()
    assert world.ranks.steps(world.model) == [1, 2]
    assert getattr(await world.result(2), "metrics", None) == expected(2).metrics


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
    assert isinstance(failed, WorkFailure) and failed.category == "server"
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
    assert isinstance(found, WorkFailure) and "have ended 2 times" in found.message
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
    await require_made_after_its_pause(world)


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
    await world.service.desk.done(piece.ticket, encode(WorkFailure(message="the volume does not answer")))
    await world.idle()
    assert world.ranks._models == {} and await world.result(2) is None
    await require_made_after_its_pause(world)


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
            await desk.done(piece.ticket, encode(WorkResult()))
    assert await world.result(1) is None
    assert await desk.next("5", False, 0.0, 5, 4)
    found = await world.result(1)
    assert (found is None) if failed == 0 else isinstance(found, WorkFailure)


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
        await world.service.ask("bob", guest, 1, WorkFailure(message="another one"))
    await world.idle()
    assert list(world.ranks._models) == [world.model]
