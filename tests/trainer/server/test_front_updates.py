"""Updates through the front: what is served before, during and after one, whole or failed."""

import json

import pytest

from rljob_trainer.wire.weights import protocol
from trainer.server.front import NEEDS, SENDERS, Caller, of

RECEIVED = ["rljob_admit", "rljob_receive", "rljob_verify", "clear_mm_cache_async", "pause_scheduler_async"]
APPLIED = ["rljob_apply", "reset_prefix_cache", "update_weight_version", "resume_generation"]


async def test_an_update_pauses_only_to_be_applied_and_empties_the_caches(call: Caller) -> None:
    await call.update(1)
    call.engine.calls.clear()
    await call.update(1)
    assert call.engine.calls == [*RECEIVED, *APPLIED]


async def test_whoever_opens_an_update_learns_where_all_workers_are_reached_and_what_they_need(
    call: Caller,
) -> None:
    status, body = await call("POST", protocol.OPEN, of(1), session="s", server="uid", senders=SENDERS, keep=False)
    assert (status, body) == (
        200,
        {"doors": [["10.0.0.1", 7000], ["10.0.0.1", 7001]], "needs": json.loads(json.dumps(NEEDS))},
    )


async def test_the_old_policy_is_served_while_the_next_one_comes_and_after_an_abort(call: Caller) -> None:
    await call.update(1)
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=False)
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert (await call("POST", protocol.ABORT, of(1), session="another"))[0] == 500
    assert (await call("POST", protocol.ABORT, of(1), session="x"))[0] == 200
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


@pytest.mark.parametrize("fails", ["rljob_admit", "rljob_receive", "rljob_verify"])
async def test_a_failed_update_is_discarded_and_the_old_policy_goes_on(call: Caller, fails: str) -> None:
    await call.update(1, step=1)
    call.engine.fails = fails
    assert 500 in await call.update(1, step=2)
    assert call.engine.calls[-1] == "rljob_discard"
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert call.headers[protocol.STEP_HEADER.lower()] == "1"
    call.engine.fails = ""
    assert await call.update(1, step=2) == [200, 200]


async def test_an_update_over_the_weights_ends_serving_until_one_is_complete(call: Caller) -> None:
    """Where there is no room to keep a policy while the next one comes."""
    await call.update(1, step=1)
    call.engine.room = False
    call.engine.calls.clear()
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=False)
    assert call.engine.calls == ["rljob_admit", "clear_mm_cache_async", "pause_scheduler_async", "rljob_receive"]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
    assert (await call("POST", protocol.ABORT, of(1), session="x"))[0] == 200
    assert call.engine.calls[-1] == "rljob_discard", (
        "a request that was let in before waits in the engine, and must not run"
    )
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
    assert await call.update(1, step=2) == [200, 200]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200


KEPT = ["rljob_admit", "rljob_receive", "rljob_verify", "pause_scheduler_async:keep", "rljob_apply"]


async def test_an_update_that_keeps_requests_empties_no_cache_and_turns_nobody_away(call: Caller) -> None:
    await call.update(1, step=1)
    call.engine.calls.clear()
    during: list[tuple[str, int]] = []

    async def ask(what: str) -> None:
        during.append((what, (await call("POST", "/v1/completions", of(1)))[0]))

    call.engine.meanwhile = ask
    assert await call.update(1, step=2, keep=True) == [200, 200]
    assert call.engine.calls == [*KEPT, "update_weight_version", "resume_generation"]
    assert during == [(what, 200) for what in call.engine.calls]
    call.engine.meanwhile = None
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert call.headers[protocol.STEP_HEADER.lower()] == "2"


async def test_requests_stand_still_while_an_update_that_keeps_them_is_loaded_over_the_weights(call: Caller) -> None:
    """Where there is no room to keep a policy while the next one comes."""
    await call.update(1, step=1)
    call.engine.room = False
    call.engine.calls.clear()
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=True)
    assert call.engine.calls == ["rljob_admit", "pause_scheduler_async:keep", "rljob_receive"]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200, "it waits in the engine"
    call.engine.calls.clear()
    assert (await call("POST", protocol.INTERRUPT, of(1)))[0] == 200
    assert call.engine.calls == ["pause_scheduler_async"], "the weights are no policy's, so nothing may run"
    assert await call.update(1, step=2, keep=True) == [200, 200]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert call.headers[protocol.STEP_HEADER.lower()] == "2"


async def test_requests_end_when_an_update_over_the_weights_fails(call: Caller) -> None:
    await call.update(1, step=1)
    call.engine.room = False
    await call("POST", protocol.OPEN, of(1), session="x", server="uid", senders=SENDERS, keep=True)
    call.engine.calls.clear()
    assert (await call("POST", protocol.ABORT, of(1), session="x"))[0] == 200
    discarded = ["rljob_discard", "clear_mm_cache_async", "pause_scheduler_async"]
    assert call.engine.calls == discarded, "nothing is generated with weights that are no policy's"
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
    assert await call.update(1, step=2, keep=True) == [200, 200]
    assert call.engine.calls[-4:] == APPLIED, "nothing was kept, so the caches are emptied"


@pytest.mark.parametrize("fails", ["rljob_admit", "rljob_receive", "rljob_verify"])
async def test_requests_that_are_kept_go_on_after_an_update_that_failed(call: Caller, fails: str) -> None:
    await call.update(1, step=1)
    call.engine.fails = fails
    call.engine.calls.clear()
    assert 500 in await call.update(1, step=2, keep=True)
    assert call.engine.calls[-1] == "rljob_discard" and not any("pause" in c for c in call.engine.calls)
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert call.headers[protocol.STEP_HEADER.lower()] == "1"


async def test_a_policy_of_another_attempt_keeps_nothing(call: Caller) -> None:
    await call.update(1, step=1)
    call.engine.calls.clear()
    assert await call.update(2, step=1, keep=True) == [200, 200]
    assert "pause_scheduler_async" in call.engine.calls and call.engine.calls[-4:] == APPLIED


async def test_an_answer_names_no_policy_when_it_was_updated_since_the_request_was_let_in(call: Caller) -> None:
    await call.update(1, step=1)
    call.meanwhile = lambda: call.update(1, step=2)
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert protocol.STEP_HEADER.lower() not in call.headers
    await call("POST", "/v1/completions", of(1))
    assert call.headers[protocol.STEP_HEADER.lower()] == "2", "the same weights again are the same policy"


async def test_an_interruption_ends_what_is_in_flight_and_keeps_policy_and_caches(call: Caller) -> None:
    assert (await call("POST", protocol.INTERRUPT, of(1)))[0] == 200
    assert call.engine.calls == [], "nothing is served yet"
    await call.update(1, step=4)
    call.engine.calls.clear()
    assert (await call("POST", protocol.INTERRUPT, of(1)))[0] == 200
    assert call.engine.calls == ["pause_scheduler_async", "resume_generation"]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 200
    assert call.headers[protocol.STEP_HEADER.lower()] == "4"
    assert (await call("POST", protocol.INTERRUPT, of(0)))[0] == 409


async def test_an_update_that_was_left_open_is_discarded_by_the_next(call: Caller) -> None:
    await call("POST", protocol.OPEN, of(1), session="dead", server="uid", senders=SENDERS, keep=False)
    assert await call.update(2) == [200, 200]
    assert (await call("POST", protocol.COMMIT, of(2), session="dead", step=1, digest="d", workers=[]))[0] == 500


async def test_a_model_that_was_half_applied_ends_the_server(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))
    await call.update(1)
    call.engine.fails = "rljob_apply"
    with pytest.raises(RuntimeError):
        await call.update(1)
    assert killed == [15]
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
