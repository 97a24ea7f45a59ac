"""Updates of servers, where all parameters are trained, next to the work of clients: who has the ranks when."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.gateway.refusals import MOST_REFUSED, REFUSED_SECONDS, TEMPORARY_SECONDS, Refusals
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.service import OptimStep, ServePolicy, Work, WorkFailure, WorkResult
from trainer.gateway.world import World

SERVER = RolloutEndpoint(pod="r-0", pod_uid="u0", url="http://r-0")
STEP_SECONDS, UPDATE_SECONDS = 1.0, 7.0
SERVED, NO_ROOM = WorkResult(served=("u0",)), WorkResult(refused={"u0": "out of memory"})
DAMAGED = WorkFailure(message="the snapshot is damaged")


class Busy(World):
    """A model that always has a further step, and samples that always want a further policy. Time passes while the ranks work."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        self.now, self.done, self._seq = 0.0, list[type[Work]](), count(1)
        self.policies = self.service.desk.policies = ServedPolicies("/base", self.service.desk.changed)
        self.policies.follow([SERVER])
        self._tasks = set[asyncio.Task[None]]()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in ("desk", "policies", "refusals"):
            monkeypatch.setattr(f"rljob_trainer.gateway.{module}.time", clock)

    async def step(self) -> None:
        """A further request of the model."""
        seq = next(self._seq)
        await self.service.ask("ann", self.model, seq, OptimStep(model=self.model, seq=seq, learning_rate=0.1))

    def sample(self, policy: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._sample(policy))
        self._tasks.add(task)
        return task

    async def _sample(self, policy: str) -> None:
        async with self.policies.turn(policy):
            pass

    async def take(self, of_update: WorkResult | WorkFailure = SERVED) -> bool:
        """One piece of work. False: there is none. `of_update`: what comes of an update of the server."""
        piece = await self.service.desk.next("0", False, 0.0)
        if piece is None:
            return False
        work = decode_work(piece.work)
        self.done.append(type(work))
        self.now += UPDATE_SECONDS if isinstance(work, ServePolicy) else STEP_SECONDS
        await self.service.desk.done(
            piece.ticket, encode(of_update if isinstance(work, ServePolicy) else self.ranks.do(work))
        )
        await asyncio.sleep(0)
        return True


@pytest.fixture
async def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Busy:
    world = Busy(tmp_path, monkeypatch)
    await world.begin()
    while await world.take():
        pass
    world.done.clear()
    return world


def names() -> Iterator[str]:
    return (f"/snapshots/{i}" for i in count())


async def work_on_both(world: Busy, pieces: int) -> None:
    """While there is always a step to do, and an update."""
    policies = names()
    waiting = world.sample(next(policies))
    for _ in range(pieces):
        await world.step()
        if waiting.done():
            waiting = world.sample(next(policies))
        await asyncio.sleep(0)
        assert await world.take()


async def test_updates_and_steps_share_the_time_of_the_ranks(busy: Busy) -> None:
    await work_on_both(busy, pieces=80)
    seconds = [sum(kind is of for kind in busy.done) * each for of, each in ((ServePolicy, 7.0), (OptimStep, 1.0))]
    assert abs(seconds[0] - seconds[1]) <= UPDATE_SECONDS + STEP_SECONDS, busy.done


async def test_the_first_piece_of_a_driver_costs_its_own_time_and_not_that_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Busy(tmp_path, monkeypatch)
    world.now = 9000.0
    await world.begin()
    await work_on_both(world, pieces=20)
    assert world.done.count(OptimStep) > 3, world.done


def test_a_refused_policy_is_tried_again_after_some_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, refusals = 1000.0, Refusals()
    monkeypatch.setattr("rljob_trainer.gateway.refusals.time", SimpleNamespace(monotonic=lambda: now))
    refusals.keep(str(tmp_path), "out of memory", ["u0"], REFUSED_SECONDS)
    assert refusals.why(str(tmp_path), ["u0"]) == "out of memory"
    now += REFUSED_SECONDS + 1
    assert refusals.why(str(tmp_path), ["u0"]) is None


@pytest.mark.parametrize("what", ["nothing changes", "its files change", "some minutes pass"])
async def test_a_snapshot_that_the_ranks_find_damaged_is_read_once_until(busy: Busy, tmp_path: Path, what: str) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()

    async def sampled(of_update: WorkResult | WorkFailure) -> None:
        sample = busy.sample(str(snapshot))
        await asyncio.sleep(0)
        await busy.take(of_update)
        await sample

    for _ in range(3):
        with pytest.raises(RequestRefusedError, match="the snapshot is damaged"):
            await sampled(DAMAGED)
    assert busy.done == [ServePolicy]
    match what:
        case "nothing changes":
            with pytest.raises(RequestRefusedError, match="the snapshot is damaged"):
                await sampled(SERVED)
            return
        case "its files change":
            (snapshot / "model.safetensors").write_bytes(b"restored")
        case "some minutes pass":
            busy.now += REFUSED_SECONDS + 1
    await sampled(SERVED)
    assert busy.done == [ServePolicy] * 2


UNAVAILABLE = WorkFailure(message="the volume is away", category="server")


@dataclass(frozen=True)
class Refusing:
    """Ranks that refuse an update."""

    failure: WorkFailure
    tries: int
    """Updates until the samples fail that wait."""
    seconds: float
    """For which those that come later fail without another update."""


REFUSING = {
    "a temporary failure": Refusing(UNAVAILABLE, MOST_REFUSED, TEMPORARY_SECONDS),
    "a real mismatch": Refusing(DAMAGED, 1, REFUSED_SECONDS),
}


@pytest.mark.parametrize("refusing", REFUSING.values(), ids=REFUSING)
async def test_a_refusal_by_the_ranks_is_remembered_as_long_as_its_reason_lasts(busy: Busy, refusing: Refusing) -> None:
    waiting = busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    while not waiting.done():
        await busy.take(refusing.failure)
        busy.now += 1.0
    with pytest.raises(RequestRefusedError, match=refusing.failure.message):
        await waiting
    assert busy.done == [ServePolicy] * refusing.tries
    refused = busy.now
    while busy.now < refused + refusing.seconds - 2.0:
        with pytest.raises(RequestRefusedError, match=refusing.failure.message):
            await busy.sample("/snapshots/0")
        busy.now += refusing.seconds / 5
    busy.now = refused + refusing.seconds + 1.0
    later = busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    await busy.take(SERVED)
    await later
    assert busy.done == [ServePolicy] * (refusing.tries + 1)


async def test_a_sample_is_served_once_a_temporary_failure_of_the_ranks_is_over(busy: Busy) -> None:
    waiting = busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    await busy.take(UNAVAILABLE)
    assert not await busy.take(SERVED), "the ranks pause before they try again"
    busy.now += 10.0
    await busy.take(SERVED)
    await waiting


async def test_a_sample_of_the_policy_that_servers_have_goes_on_where_an_update_that_nobody_wants_any_more_was_postponed(
    busy: Busy,
) -> None:
    before = busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    await busy.take()
    await before
    cancelled = busy.sample("/snapshots/1")
    await asyncio.sleep(0)
    update = await busy.service.desk.next("0", False, 0.0)
    assert update and isinstance(decode_work(update.work), ServePolicy)
    waiting = busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    await busy.service.desk.done(update.ticket, encode(UNAVAILABLE))
    await asyncio.wait_for(waiting, 5.0)


async def test_an_update_is_not_made_to_wait_for_the_steps_that_came_before_anybody_wanted_it(busy: Busy) -> None:
    for _ in range(40):
        await busy.step()
        await busy.take()
    for _ in range(3):
        await busy.step()
    busy.sample("/snapshots/0")
    await asyncio.sleep(0)
    for _ in range(2):
        await busy.take()
    assert ServePolicy in busy.done[40:]


async def test_a_step_is_not_made_to_wait_for_the_updates_that_nobody_else_needed_the_ranks_for(busy: Busy) -> None:
    policies = names()
    for _ in range(5):
        await asyncio.gather(busy.sample(next(policies)), busy.take())
    await busy.step()
    busy.sample(next(policies))
    await asyncio.sleep(0)
    for _ in range(2):
        await busy.take()
    assert OptimStep in busy.done[5:]


async def test_a_snapshot_that_no_server_takes_costs_a_training_model_less_than_half_of_its_time(busy: Busy) -> None:
    refused = busy.sample("/snapshots/bad")
    await asyncio.sleep(0)
    while not refused.done():
        await busy.step()
        await busy.take(NO_ROOM)
    with pytest.raises(RequestRefusedError, match="r-0: out of memory"):
        await refused
    assert busy.done.count(ServePolicy) == 3
    assert busy.done.count(OptimStep) * STEP_SECONDS >= 2 * UPDATE_SECONDS
    for _ in range(5):
        await busy.step()
        await busy.take(NO_ROOM)
    assert busy.done[-5:] == [OptimStep] * 5
