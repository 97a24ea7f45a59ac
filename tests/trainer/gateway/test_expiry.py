"""What clients save for some time only."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.gateway.service import UnknownError
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.service import SaveForSampler, SaveState, Work, WorkResult
from trainer.gateway.test_routes import Desk, opened
from trainer.gateway.world import World, full_disk

HOUR = 3600
TTL = 2 * HOUR
CALLS = {
    "save_weights": "weights",
    "save_weights_for_sampler": "sampler_weights",
    "save_weights_external": "external_weights",
}


async def save(desk: Desk, call: str, seq: int, name: str, **asked: Any) -> str:
    """Have the ranks save it. What the client calls it, without its scheme."""
    assert (await desk.post(call, model_id=desk.model, seq_id=seq, path=name, **asked)).status == 200
    while piece := await desk.service.desk.next("life", False, 0.0):
        write(decode_work(piece.work))
        await desk.service.desk.done(piece.ticket, encode(WorkResult()))
    return f"{desk.model}/{CALLS[call]}/{name}"


def write(work: Work) -> None:
    """What the ranks write."""
    if isinstance(work, SaveState | SaveForSampler):
        Path(work.path).mkdir(parents=True)


async def kept(desk: Desk) -> dict[str, bool]:
    """By its name, whether it has an end."""
    listed = (await desk.listed("checkpoints"))["checkpoints"]
    return {c["checkpoint_id"].rpartition("/")[2]: c["expires_at"] is not None for c in listed}


async def later(desk: Desk, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with monkeypatch.context() as patched:
        patched.setattr("rljob_trainer.gateway.service.time.time", lambda: now + seconds)
        await desk.service.sweep()


@pytest.mark.parametrize("call", CALLS)
async def test_what_is_saved_for_some_time_is_deleted_after_it_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with opened(tmp_path) as desk:
        await save(desk, call, 1, "some", ttl_seconds=TTL)
        await save(desk, call, 2, "always")
        assert await kept(desk) == {"some": True, "always": False}
        directories = {path.rpartition("/")[2]: s.directory for path, s in desk.service.names.saved.items()}
        await later(desk, TTL - 60, monkeypatch)
        assert set(await kept(desk)) == {"some", "always"}
        await later(desk, TTL + 60, monkeypatch)
        assert set(await kept(desk)) == {"always"}
        assert [(tmp_path / directories[name]).is_dir() for name in ("some", "always")] == [False, True]


async def at_once(one: Awaitable[None], other: Awaitable[None], first: bool) -> None:
    """`first`: whether `one` begins."""
    await asyncio.gather(*(one, other) if first else (other, one))


async def saved(desk: Desk, names: str) -> list[str]:
    """States for some time: what the client calls them."""
    paths = [await save(desk, "save_weights", seq, name, ttl_seconds=TTL) for seq, name in enumerate(names, 1)]
    return [f"tinker://{path}" for path in paths]


@pytest.mark.parametrize("first", [True, False])
async def test_what_a_client_keeps_longer_while_things_expire_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    async with opened(tmp_path) as desk:
        path = (await saved(desk, "ab"))[1]
        directory = tmp_path / desk.service.named("anybody", path).directory
        await at_once(desk.service.keep("anybody", path, 4 * HOUR), later(desk, TTL + 60, monkeypatch), first)
        assert set(await kept(desk)) == {"b"} and directory.is_dir()
    async with opened(tmp_path) as desk:
        assert set(await kept(desk)) == {"b"}


async def test_what_is_saved_again_while_its_time_is_changed_is_the_newer_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        (path,) = await saved(desk, "a")
        newer = replace(desk.service.named("anybody", path), directory="states/newer")
        await asyncio.gather(desk.service.names.save(path, newer), desk.service.keep("anybody", path, 0))
        assert desk.service.named("anybody", path) == replace(newer, expires=None)


@pytest.mark.parametrize("first", [True, False])
async def test_what_a_client_deletes_while_it_expires_is_deleted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    async with opened(tmp_path) as desk:
        path = (await saved(desk, "ab"))[1]
        await at_once(desk.service.delete("anybody", path), later(desk, TTL + 60, monkeypatch), first)
        assert not await kept(desk)


async def test_what_a_client_deletes_while_it_keeps_it_is_unknown(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        (path,) = await saved(desk, "a")
        both = desk.service.delete("anybody", path), desk.service.keep("anybody", path, TTL)
        deleted, refusal = await asyncio.gather(*both, return_exceptions=True)
        assert deleted is None and isinstance(refusal, UnknownError)
        assert not await kept(desk)


async def test_on_a_full_volume_what_has_expired_is_deleted_later_and_all_else_is_swept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as desk:
        await saved(desk, "ab")
        with full_disk(100):
            await later(desk, TTL + 60, monkeypatch)
        assert set(await kept(desk)) == {"a", "b"}
        assert [path in caplog.text for path in desk.service.names.saved] == [True, True]
        await later(desk, TTL + 60, monkeypatch)
        assert not await kept(desk)


async def test_how_long_something_is_kept_can_be_changed_and_outlives_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        for seq, name in enumerate("abc", 1):
            await save(desk, "save_weights", seq, name, ttl_seconds=TTL)
        for name, ttl in (("a", None), ("b", 4 * HOUR)):
            path = f"training_runs/{desk.model}/checkpoints/weights/{name}/ttl"
            assert (await desk.put(path, ttl_seconds=ttl)).status == 200
        wrong = f"training_runs/{desk.model}/checkpoints/weights/a/ttl"
        assert (await desk.put(wrong, ttl_seconds=60)).status == 400
        assert (await desk.put(wrong.replace("/a/", "/z/"), ttl_seconds=TTL)).status == 404
    async with opened(tmp_path) as desk:
        assert await kept(desk) == {"a": False, "b": True, "c": True}
        await later(desk, TTL + 60, monkeypatch)
        assert set(await kept(desk)) == {"a", "b"}
        await later(desk, 4 * HOUR + 60, monkeypatch)
        assert set(await kept(desk)) == {"a"}


async def test_a_save_that_a_lost_gateway_had_taken_expires_as_it_was_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.begin()
    work, path = SaveState(model=world.model, seq=1, path=""), f"tinker://{world.model}/weights/a"
    await world.service.ask("ann", world.model, 1, work, path, TTL)
    world.crash("both")
    await world.idle()
    expires = world.service.named("ann", path).expires
    assert expires and expires == pytest.approx(time.time() + TTL, abs=60)


async def test_a_time_that_is_no_time_fails_the_save_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await save(desk, "save_weights", 1, "a", ttl_seconds=60)
        await save(desk, "save_weights", 2, "b")
        found = await (await desk.post("retrieve_future", request_id=f"{desk.model}:1")).json()
        assert found["error"].startswith("ttl_seconds: ") and set(await kept(desk)) == {"b"}
