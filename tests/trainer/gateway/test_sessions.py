"""Who is taken for gone, and what clients hear of what is not there: by gateways that stood still, were started again, or have been followed."""

import asyncio
import errno
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_trainer.gateway.files import CHECKPOINTS, SNAPSHOTS, STATES
from rljob_trainer.gateway.listening import LONGEST_SECONDS, ListeningClock
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.gateway.service import GRACE_SECONDS, GatewayService, UnknownError
from rljob_trainer.wire.gateway import encode
from rljob_trainer.wire.service import CreateModel, OptimStep, SaveForSampler, WorkFailure, WorkResult
from trainer.gateway.test_routes import SPEC, Desk, opened
from trainer.gateway.world import SNAPSHOT, World

HEARTBEAT = 10.0
"""Seconds between two of the SDK's."""
ABSENCES = st.lists(
    st.tuples(st.sampled_from(["attends", "stands still", "restarts"]), st.floats(0, 5000)), max_size=12
)


class Clock:
    """The machine's."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr("rljob_trainer.gateway.listening.time", SimpleNamespace(monotonic=clock.monotonic))
        yield clock


async def absent(world: World, clock: Clock, what: str, seconds: float) -> None:
    """What a gateway does for some time, and then sweeps, before it reads what a client has sent meanwhile."""
    if what == "restarts":
        world.crash("gateway")  # it has the sessions now, and reads the models' journals for so long
    clock.now += min(seconds, HEARTBEAT) if what == "attends" else seconds
    await world.service.sweep()


@given(ABSENCES)
@settings(max_examples=60)
async def test_a_client_that_lives_keeps_its_session_and_its_results_however_long_the_gateway_was_away(
    clock: Clock, absences: list[tuple[str, float]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        await world.begin()
        await world.ask(1)
        await world.idle()
        for what, seconds in absences:
            await absent(world, clock, what, seconds)
            world.service.hear("ann", world.session)
        assert not world.service.book("ann", world.model).line.is_lost(1)


@pytest.mark.parametrize("what", ["stands still", "restarts"])
async def test_a_client_that_is_gone_is_noticed_all_the_same(tmp_path: Path, clock: Clock, what: str) -> None:
    world = World(tmp_path)
    await world.begin()
    await absent(world, clock, what, 5000.0)
    attended = 0.0
    while world.session in world.service.names.sessions:
        await absent(world, clock, "attends", 5.0)
        attended += 5.0
    assert SPEC.session_timeout_seconds - LONGEST_SECONDS <= attended <= SPEC.session_timeout_seconds + 5.0


async def test_an_answer_of_a_sample_is_kept_while_the_gateway_stands_still_and_then_for_its_time(clock: Clock) -> None:
    listening, name = ListeningClock(), "s:sample:0:1"
    samples = Samples(SamplingServers("token").sample, listening)
    samples.ask("ann", name, WorkFailure(message="no such thing"))
    await asyncio.sleep(0)

    def sweep(seconds: float) -> None:
        clock.now += seconds
        listening.mark()
        samples.sweep()

    sweep(5000.0)
    assert await samples.result("ann", name, 0.0) == WorkFailure(message="no such thing")
    sweep(5000.0)
    assert samples.has(name)
    for _ in range(int(GRACE_SECONDS / 5.0)):
        sweep(5.0)
    assert not samples.has(name)


async def test_a_client_that_waits_for_one_sample_is_heard(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        known, name = desk.service.names.sessions[desk.session], f"{desk.session}:sample:0:1"
        desk.samples.ask("anybody", name, WorkFailure(message="no such thing"))
        known.heard = -1.0
        await desk.post("retrieve_future", request_id=name)
        assert known.heard >= 0.0


PASSING = {"prompt": {"chunks": []}, "sampling_params": {}}
PATH = "tinker://{model}/weights/x"
POSTS: list[tuple[str, dict[str, Any], int]] = [
    ("session_heartbeat", {"session_id": "{session}"}, 410),
    ("sessions/{session}/finish", {}, 200),
    ("create_model", {"session_id": "{session}", "model_seq_id": 1, "base_model": "base"}, 404),
    ("load_weights", {"session_id": "{session}", "model_seq_id": 1, "path": PATH}, 404),
    ("load_weights", {"model_id": "{model}", "seq_id": 1, "path": PATH}, 404),
    ("get_info", {"model_id": "{model}"}, 404),
    ("optim_step", {"model_id": "{model}", "seq_id": 1, "adam_params": {}}, 404),
    ("save_weights", {"model_id": "{model}", "seq_id": 1}, 404),
    ("create_sampling_session", {"session_id": "{session}", "sampling_session_seq_id": 0, "base_model": "base"}, 404),
    ("asample", {"sampling_session_id": "{session}:sample:0", "seq_id": 0} | PASSING, 404),
    ("retrieve_futures", {"target": {"sampling_session_id": "{session}:sample:0"}}, 404),
    ("retrieve_future", {"request_id": "{session}:sample:0:0"}, 410),
    ("retrieve_future", {"request_id": "{model}:0"}, 200),
    ("weights_info", {"tinker_path": PATH}, 404),
]
"""Calls about a session, and the status if there is none such."""
NAMES = [f"{call} {i}" for i, (call, *_) in enumerate(POSTS)]
each_call = pytest.mark.parametrize(("call", "body"), [(call, body) for call, body, _ in POSTS], ids=NAMES)


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(inner, names) for key, inner in value.items()}
    return value.format(**names) if isinstance(value, str) else value


async def asked(desk: Desk, call: str, body: dict[str, Any], session: str) -> int:
    names = {"session": session, "model": f"{session}:train:0"}
    return (await desk.post(call.format(**names), **filled(body, names))).status


@pytest.mark.parametrize(("call", "body", "status"), POSTS, ids=NAMES)
async def test_a_gateway_that_another_one_has_followed_says_of_nothing_that_it_is_not_there(
    tmp_path: Path, call: str, body: dict[str, Any], status: int
) -> None:
    async with opened(tmp_path) as desk:
        assert await asked(desk, call, body, "0123") == status, "of a gateway that knows all that there is"
        latter = GatewayService(SPEC, tmp_path)
        session = await latter.open_session("anybody")
        await latter.create("anybody", CreateModel(model=f"{session}:train:0", seq=0, rank=4, seed=1))
        assert await asked(desk, call, body, session) == 503, "the client asks again, and reaches the other one"


@each_call
async def test_a_gateway_whose_volume_is_away_says_of_nothing_that_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, body: dict[str, Any]
) -> None:
    """Nor 5xx, after which clients would ask for a result again at once."""
    async with opened(tmp_path) as desk:
        monkeypatch.setattr(desk.service.claim, "check", away)
        assert await asked(desk, call, body, "0123") in (402, 429)


@each_call
async def test_a_gateway_that_cannot_read_its_keys_refuses_nobody_for_good(
    tmp_path: Path, call: str, body: dict[str, Any]
) -> None:
    async with opened(tmp_path, keys=tmp_path / "away") as desk:
        assert await asked(desk, call, body, desk.session) in (402, 429)


def away() -> None:
    raise OSError(errno.EIO, "the volume is away")


async def test_a_client_whose_session_is_not_there_hears_it_from_each_future_of_a_model(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.service.close_session("anybody", desk.session)
        found = await (await desk.post("retrieve_future", request_id=f"{desk.model}:0")).json()
        assert found["error"] == f"{desk.model}:0 is not known (any more): there is no session {desk.session}"


async def test_a_session_is_ended_once_more_where_the_answer_was_lost(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        other = await desk.service.open_session("another client")
        for session in (desk.session, desk.session, other):
            assert (await desk.post(f"sessions/{session}/finish")).status == 200
    again = GatewayService(SPEC, tmp_path)
    await again.close_session("anybody", desk.session)
    again.hear("another client", other)
    with pytest.raises(UnknownError):
        again.hear("anybody", desk.session)


@pytest.mark.parametrize("fails", range(3))
async def test_what_a_session_had_goes_with_it_though_the_volume_fails_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """`fails`: deletions before that."""
    world = World(tmp_path)
    await world.begin()
    second = f"{world.session}:train:1"
    await world.service.create("ann", CreateModel(model=second, seq=0, rank=4, seed=1))
    await world.service.ask("ann", second, 1, OptimStep(model=second, seq=1, learning_rate=0.1))
    for seq in range(1, SNAPSHOT + 1):
        await world.ask(seq)
    await world.idle()
    assert len(directories(tmp_path)) == 3, "a snapshot, and a checkpoint of each model"
    deletions, check = count(), world.service.claim.check

    def checked() -> None:
        if next(deletions) == fails:
            away()
        check()

    with monkeypatch.context() as patched:
        patched.setattr(world.service.claim, "check", checked)
        with pytest.raises(OSError, match="the volume is away"):
            await world.service.close_session("ann", world.session)
    await asyncio.gather(*(world.service.sweep() for _ in range(2)))
    assert not world.service.books and not directories(tmp_path)


async def test_a_snapshot_that_is_named_while_its_session_ends_goes_with_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    for seq in range(1, SNAPSHOT + 1):
        await world.ask(seq)
    while not isinstance(work := await world.offered(), SaveForSampler):
        await world.work()
    piece = await world.service.desk.next("0", False, 0.0)
    world.ranks.do(work)
    ending = asyncio.create_task(world.service.close_session("ann", world.session))
    await asyncio.sleep(0)
    assert piece and world.session in world.service.names.sessions, "its end is being written"
    await world.service.desk.done(piece.ticket, encode(WorkResult()))
    await ending
    assert not world.service.names.samplers and not directories(tmp_path)


def directories(root: Path) -> set[Path]:
    """Of what ranks have written."""
    return {path for kind in (STATES, SNAPSHOTS, CHECKPOINTS) for path in (root / kind).glob("*/*")}
