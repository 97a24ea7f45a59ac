"""The front alone: who gets in. Calls as an ASGI server makes them; behind the front is an application that says OK."""

from typing import Any

import pytest

from rljob_api import names
from rljob_trainer.server.guard import PoolFront
from rljob_trainer.wire.rollout_server import SampleRequest
from rljob_trainer.wire.weights import protocol
from trainer.server.front import TOKEN, Caller, of

CLOSED = [
    ("POST", "/v1/completions"),
    ("POST", protocol.GENERATE),
    ("GET", "/v1/models"),
    ("GET", "/docs"),
    ("POST", "/health"),
    ("GET", "/health/"),
    ("GET", "//metrics"),
    ("POST", protocol.OPEN),
    ("GET", protocol.STATE),
]


@pytest.mark.parametrize("route", [("GET", "/health"), ("GET", "/metrics")])
async def test_kubelet_and_prometheus_need_no_token(call: Caller, route: tuple[str, str]) -> None:
    assert await call(*route) == (200, "from vLLM")


@pytest.mark.parametrize("route", CLOSED)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer secretÿ"}]
)
async def test_everything_else_is_closed_without_the_token(
    call: Caller, route: tuple[str, str], headers: dict[str, str]
) -> None:
    assert (await call(*route, headers))[0] == 401
    assert call.engine.calls == []


async def test_websockets_are_closed(call: Caller) -> None:
    sent: list[dict] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await call.front({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_nothing_generates_before_weights_of_the_current_attempt_came(call: Caller) -> None:
    assert (await call("POST", "/v1/completions", of(1)))[0] == 503
    assert await call.update(1, step=4) == [200, 200]
    assert await call("POST", "/v1/completions", of(1)) == (200, "from vLLM")
    assert call.headers[protocol.STEP_HEADER.lower()] == "4"
    assert await call("GET", protocol.STATE, TOKEN) == (
        200,
        {"attempt": 1, "policy_step": 4, "digest": "d", "cache_tokens": 4096},
    )
    assert (await call("POST", "/v1/completions", of(2)))[0] == 503
    assert await call("GET", protocol.STATE, TOKEN) == (
        200,
        {"attempt": 2, "policy_step": None, "digest": "", "cache_tokens": 4096},
    )


async def test_our_own_generation_waits_for_weights_as_well_and_says_whose_it_is(call: Caller) -> None:
    assert (await call("POST", protocol.GENERATE, of(1)))[0] == 503
    await call.update(1, step=4)
    assert (await call("POST", protocol.GENERATE, of(1)))[0] == 400, "of the route itself: there is no prompt"
    assert call.headers[protocol.STEP_HEADER.lower()] == "4"


async def test_samples_of_another_policy_than_the_one_that_is_served_are_not_drawn(call: Caller) -> None:
    """Where all parameters of a service's model are trained."""
    asked = SampleRequest(tokens=[1], n=1, seed=0, max_tokens=1, policy_step=4)
    assert (await call("POST", protocol.SAMPLE, of(1), **asked.body()))[0] == 503
    await call.update(1, step=5)
    refused = await call("POST", protocol.SAMPLE, of(1), **asked.body())
    assert refused == (503, {"error": "policy 5 is served here, not 4"})
    assert "generate" not in call.engine.calls


async def test_a_lower_attempt_is_refused_on_every_route_once_a_higher_one_was_seen(call: Caller) -> None:
    await call.update(2)
    for method, path in [
        ("GET", protocol.STATE),
        ("POST", protocol.OPEN),
        ("POST", protocol.GENERATE),
        ("POST", "/v1/completions"),
    ]:
        status, body = await call(method, path, of(1))
        assert (status, body["attempt"]) == (409, 2)


async def test_an_unauthenticated_request_does_not_move_the_fence(call: Caller) -> None:
    await call("GET", protocol.STATE, {protocol.ATTEMPT_HEADER: "9"})
    assert await call.update(1) == [200, 200]


async def test_a_server_can_be_born_with_an_attempt(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_ATTEMPT, "5")
    assert (await Caller()("POST", protocol.OPEN, of(4)))[0] == 409


async def test_a_header_or_body_that_makes_no_sense_is_a_client_error(call: Caller) -> None:
    assert (await call("GET", protocol.STATE, of("one")))[0] == 400
    assert (await call("POST", protocol.OPEN, TOKEN))[0] == 400
    assert (await call("POST", protocol.OPEN, of(1)))[0] == 400


async def test_a_pools_server_answers_all_that_vllm_can_to_the_jobs_token_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(names.ENV_ROLLOUT_TOKEN, "secret")
    call = Caller(PoolFront)
    for route in CLOSED:
        assert (await call(*route))[0] == 401
    assert await call("POST", "/v1/chat/completions", TOKEN) == (200, "from vLLM")
    assert await call("GET", "/health") == (200, "from vLLM")
    assert await call("GET", protocol.STATE, TOKEN) == (200, {})
    assert (await call("GET", protocol.HEALTH, TOKEN))[0] == 200
    assert call.engine.calls == ["is_scheduler_paused"]
    call.engine.fails = "is_scheduler_paused"
    assert (await call("GET", protocol.HEALTH, TOKEN))[0] == 500
