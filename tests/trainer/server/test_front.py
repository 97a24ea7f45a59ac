"""The front alone: who gets in. Calls as an ASGI server makes them; behind the front is an application that says OK."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api import names
from rljob_trainer.server.front import Front
from rljob_trainer.server.guard import Guard, PoolFront
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice

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
NEEDS = [Needs.of({"experts.1": NOTHING}).as_json(), Needs.of({"q.weight": Slice(0, ((0, 8),))}).as_json()]
SENDERS = [{"address": "127.0.0.1", "port": port} for port in (1, 2)]
TOKEN = {"Authorization": "Bearer secret"}


class Engine:
    """Records what the front asks of vLLM's engine; `fails` names the call that raises."""

    def __init__(self, copies: int = 1) -> None:
        self.calls: list[str] = []
        self.fails = ""
        self.room = True
        """Its workers can keep a policy while they receive the next."""
        self.meanwhile: Callable[[str], Awaitable[Any]] | None = None
        """Happens during each call."""
        self.engine_core = self.renderer = self
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=True),
            lora_config=None,
            cache_config=SimpleNamespace(kv_cache_size_tokens=4096),
            parallel_config=SimpleNamespace(data_parallel_size=copies),
        )

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            utility = args[0] if name == "call_utility_all_async" else name
            what = args[1] if utility == "collective_rpc" else utility
            self.calls.append(f"{what}:keep" if named.get("mode") == "keep" else what)
            if self.meanwhile:
                await self.meanwhile(self.calls[-1])
            if what == self.fails:
                raise RuntimeError(f"{what} failed")
            if what == "rljob_admit":
                _, senders, serves = args[3]
                assert senders == SENDERS
                return [[(["10.0.0.1", 7000 + worker], serves and self.room, NEEDS[worker])] for worker in range(2)]
            return [[None]] if utility == "collective_rpc" else True

        return call


class Caller:
    """A front with its engine. `meanwhile` happens between a request and its answer."""

    def __init__(self, front: type[Guard] = Front) -> None:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await self.meanwhile()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b'"from vLLM"'})

        self.meanwhile: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)
        self.engine = Engine()
        self.front = front(application)

    async def __call__(
        self, method: str, path: str, headers: dict[str, str] | None = None, **body: Any
    ) -> tuple[int, Any]:
        sent: list[dict] = []
        messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=self.engine)),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "server": ("localhost", 80),
            "scheme": "http",
        }
        await self.front(scope, receive, send)
        self.headers = {k.decode(): v.decode() for k, v in sent[0].get("headers", [])}
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))

    async def update(self, attempt: int, step: int = 1, keep: bool = False) -> list[int]:
        """Statuses of a whole update."""
        steps: list[tuple[str, dict[str, Any]]] = [
            (protocol.OPEN, {"session": "s", "server": "uid", "senders": SENDERS, "keep": keep}),
            (protocol.COMMIT, {"session": "s", "step": step, "digest": "d", "workers": ["1", "2"]}),
        ]
        return [(await self("POST", path, of(attempt), **body))[0] for path, body in steps]


def of(attempt: object) -> dict[str, str]:
    return TOKEN | {protocol.ATTEMPT_HEADER: str(attempt)}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setenv(names.ENV_ROLLOUT_TOKEN, "secret")
    return Caller()


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
