"""A server that sleeps, and one whose copies pause together."""

import pytest

from rljob_trainer.wire.weights import protocol
from trainer.server.front import SENDERS, TOKEN, Caller, Engine, of


async def test_a_sleeping_server_serves_nothing_and_wakes_its_cache_only_after_the_weights_are_there(
    call: Caller,
) -> None:
    await call.update(1)
    call.engine.calls.clear()
    assert (await call("POST", protocol.SLEEP, of(1)))[0] == 200
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
    assert await call.update(1, step=2) == [200, 200]
    calls = call.engine.calls
    assert calls[:3] == ["clear_mm_cache_async", "pause_scheduler_async", "sleep"] and calls.count("wake_up") == 2
    first, second = (i for i, c in enumerate(calls) if c == "wake_up")
    assert first < calls.index("rljob_receive") < calls.index("rljob_apply")
    assert calls.index("rljob_apply") < calls.index("reset_prefix_cache") < second, (
        "waking lets waiting requests take blocks"
    )
    assert second < calls.index("resume_generation")
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


async def test_a_server_that_was_asleep_is_asleep_again_after_an_abort(call: Caller) -> None:
    """Generation must not run without a KV cache, and the trainer needs the memory."""
    await call.update(1)
    await call("POST", protocol.SLEEP, of(1))
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=False)
    call.engine.calls.clear()
    assert (await call("POST", protocol.ABORT, of(1), session="x"))[0] == 200
    assert call.engine.calls == ["rljob_discard", "sleep"]
    assert await call.update(1, step=2) == [200, 200]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


async def test_a_sleeping_server_whose_workers_admit_no_update_is_not_put_to_sleep_again(call: Caller) -> None:
    await call.update(1)
    await call("POST", protocol.SLEEP, of(1))
    call.engine.fails = "rljob_admit"
    call.engine.calls.clear()
    assert 500 in await call.update(1, step=2)
    assert call.engine.calls == ["rljob_admit", "rljob_discard"]
    call.engine.fails = ""
    assert await call.update(1, step=2) == [200, 200]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


async def test_a_server_with_copies_is_paused_once_until_it_goes_on(call: Caller) -> None:
    """To pause them again, vLLM has them compute a step, with weights that are being loaded, or that nobody completed."""
    call.engine = Engine(copies=2)
    await call.update(1, step=1)
    assert call.engine.calls.count("pause_scheduler_async") == 1, (
        "for the first policy, which is loaded over the weights"
    )
    assert await call.update(1, step=2) == [200, 200]
    assert call.engine.calls.count("pause_scheduler_async") == 2
    call.engine.room = False
    call.engine.calls.clear()
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=False)
    assert (await call("POST", protocol.ABORT, of(1), session="x"))[0] == 200
    assert await call.update(1, step=3) == [200, 200]
    assert call.engine.calls.count("pause_scheduler_async") == 1
    assert (await call("POST", protocol.INTERRUPT, of(1)))[0] == 200
    assert call.engine.calls[-2:] == ["pause_scheduler_async", "resume_generation"]


async def test_a_server_ends_when_only_some_of_its_copies_may_have_paused(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))
    for copies in (1, 2):
        call.engine = Engine(copies)
        await call.update(copies, step=1)
        call.engine.fails = "pause_scheduler_async"
        assert await call.update(copies, step=2) == [200, 500]
        assert killed == [15] * (copies - 1)
        assert (await call("POST", "/v1/completions", of(copies)))[0] == (200 if copies == 1 else 503)


async def test_a_server_with_copies_goes_on_once_when_it_wakes(call: Caller) -> None:
    """Waking its cache has vLLM go on; a copy that is asked again while another one computes already would wait for that forever."""
    call.engine = Engine(copies=2)
    await call.update(1)
    await call("POST", protocol.SLEEP, of(1))
    call.engine.calls.clear()
    assert await call.update(1, step=2) == [200, 200]
    assert call.engine.calls.count("wake_up") == 2 and "resume_generation" not in call.engine.calls
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


async def test_a_server_with_copies_has_room_for_the_tokens_of_all(call: Caller) -> None:
    call.engine = Engine(copies=2)
    assert (await call("GET", protocol.STATE, TOKEN))[1]["cache_tokens"] == 2 * 4096
