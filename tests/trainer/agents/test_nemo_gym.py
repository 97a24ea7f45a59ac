"""Resources servers of NeMo Gym, asked by the whole driver. The library's own server runs in the extra tests, because its newest releases need
another Python; the others have one that answers as that does."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_trainer.agents.nemo_gym import MOST_METRICS, Verified
from rljob_trainer.driver import main
from rljob_trainer.rewards.request import ServiceDown
from trainer.agents.libraries import served_by
from trainer.agents.talker import first_step
from trainer.agents.test_environment_libraries import with_rows
from trainer.agents.test_tools import END, Caller, call, words, written
from trainer.driver.bench import Bench
from trainer.rewards.serving import running

SERVER = Path(__file__).with_name("nemo_gym_server.py")
LIBRARY = "nemo-gym==0.4.0"
"""The newest that Python 3.12 takes."""
INTEGER = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TOOLS = [
    {"type": "function", "name": "increment_counter", "parameters": INTEGER, "strict": True, "description": ""},
    {
        "type": "function",
        "name": "get_counter_value",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    },
]
ADD = call(name="increment_counter", arguments={"count": 2})
GET = call(name="get_counter_value", arguments={})


def row(number: int, **more: Any) -> dict[str, Any]:
    """As the library's own data are: what the policy is asked, and what the server needs."""
    create = {"input": [{"role": "user", "content": f"task {number}"}], "tools": TOOLS, "temperature": 0.3}
    return {"responses_create_params": create, "initial_count": number, "expected_count": number + 2} | more


class Counter:
    """What nemo_gym_server.py does; a row may make it misbehave."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.verified: list[dict[str, Any]] = []

    async def seed(self, request: web.Request) -> web.Response:
        body, name = await request.json(), secrets.token_hex(8)
        if body.get("mode") == "seed":
            raise web.HTTPInternalServerError(text="no room")
        self.counts[name] = body["initial_count"]
        response = web.json_response({})
        response.set_cookie("session", name)
        return response

    async def tool(self, request: web.Request) -> web.Response:
        name, body = request.cookies["session"], await request.json()
        if request.match_info["tool"] == "get_counter_value":
            return web.json_response({"count": self.counts[name]})
        if "count" not in body:
            return web.json_response({"detail": "count: Field required"}, status=422)
        self.counts[name] += body["count"]
        return web.json_response({"success": True})

    async def verify(self, request: web.Request) -> web.Response:
        body, counted = await request.json(), self.counts[request.cookies["session"]]
        self.verified.append(body)
        said = {"reward": float(counted == body["expected_count"]), "final_count": counted} | body.get("says", {})
        return web.json_response(body | said | {"text": "x" * body.get("flood", 0)})


@asynccontextmanager
async def own_server() -> AsyncIterator[str]:
    app, counter = web.Application(), Counter()
    app.add_routes([web.post("/seed_session", counter.seed), web.post("/verify", counter.verify)])
    app.add_routes([web.post("/{tool}", counter.tool)])
    async with running(app) as address:
        yield address


def library_server() -> AbstractAsyncContextManager[str]:
    return served_by(LIBRARY, SERVER)


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    found = Bench(tmp_path)
    found.spec |= {"rewards": [], "evaluation": {}}
    found.spec["data"] |= {"promptKey": "responses_create_params.input"}
    found.spec["rollout"] |= {
        "agent": {"nemoGym": {"url": url}, "toolParser": "hermes", "maxTurns": 3, "maxTokens": 1500},
        "sampling": {"maxTokens": 200},
    }
    with_rows(found, [row(n) for n in range(4)])
    return found


@pytest.fixture(params=[own_server, pytest.param(library_server, marks=pytest.mark.extra)])
async def bench(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with request.param() as url:
        yield prepared(tmp_path, monkeypatch, url)


@pytest.fixture
async def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with own_server() as url:
        yield prepared(tmp_path, monkeypatch, url)


async def test_calls_change_the_session_of_the_trajectory_and_the_server_judges_it(bench: Bench) -> None:
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(ADD, GET, "done"))
    assert written(found, "policy") == [ADD + END, GET + END, "done" + END]
    added, value = written(found, "environment")
    assert '"success":' in added.replace(" ", "") and f'"count":{found.samples[0].prompt_index + 2}' in value.replace(
        " ", ""
    )
    assert len(found.samples) == 12 and {s.reward for s in found.samples} == {1.0}, "each has a counter of its own"
    counts = [s.prompt_index + 2 for s in found.samples]
    assert found.metrics["reward_metrics/final_count"] == sum(counts) / len(counts)


async def test_a_wrong_call_is_answered_to_the_policy(bench: Bench) -> None:
    unknown, wrong = call(name="verify", arguments={}), call(name="increment_counter", arguments={})
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(unknown, wrong, "sorry"))
    first, second = written(found, "environment")
    assert "there is no function verify" in first and "Field required" in second
    assert {s.reward for s in found.samples} == {0.0} and found.metrics["agent/failed"] == 0.0


async def test_a_trajectory_without_room_for_another_turn_is_judged_as_it_is(bench: Bench) -> None:
    bench.spec["rollout"]["agent"]["maxTurns"] = 2
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=("a word" + ADD, "done"))
    assert written(found, "policy") == ["a word" + ADD + END, "done" + END]
    assert {s.reward for s in found.samples} == {1.0}


async def test_the_template_shows_the_tools_of_the_row(own: Bench) -> None:
    found, _ = await first_step(own, Caller("demo-rollout-0"), script=("done",))
    (prompt,) = written(found, "prompt")
    assert '"name": "increment_counter"' in prompt and "task" in prompt
    assert {s.reward for s in found.samples} == {0.0}


@pytest.mark.parametrize(
    ("more", "kind", "reason"),
    [
        ({"mode": "seed"}, "service", "answered to seed_session with status 500: no room"),
        ({"says": {"reward": "much"}}, "value", "answered to verify: reward: Input should be a valid number"),
        ({"says": {"reward": float("nan")}}, "value", "answered to verify: reward: "),
        ({"says": {"mask_sample": True, "failure_reason": "no judge"}}, "service", "masks the sample: no judge"),
        ({"flood": 2**25}, "value", "answered to verify with more than 33554432 bytes"),
        (
            {"responses_create_params": {"input": [{"role": "user", "content": "?"}], "tools": 1}},
            "value",
            "tools: Input",
        ),
    ],
)
async def test_a_server_that_fails_a_trajectory_fails_its_sample(
    own: Bench, caplog: pytest.LogCaptureFixture, more: dict[str, Any], kind: str, reason: str
) -> None:
    with_rows(own, [row(n, **(more if n % 2 else {})) for n in range(12)])
    own.spec["train"]["promptsPerStep"] = 12
    found, _ = await first_step(own, Caller("demo-rollout-0"), script=("done",))
    assert len(found.samples) == 18 and found.metrics[f"agent/failed_{kind}"] == found.metrics["agent/failed"] == 18.0
    assert "spec.rollout.agent.nemoGym.url" in caplog.text and reason in caplog.text


async def test_a_server_that_is_not_there_ends_the_attempt_and_not_the_job(own: Bench) -> None:
    own.spec["rollout"]["agent"]["nemoGym"]["url"] = "http://127.0.0.1:9"
    with pytest.raises(ServiceDown, match=r"nemoGym.url = http://127.0.0.1:9: .*Connect"):
        await first_step(own, Caller("demo-rollout-0"), script=("done",))


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "true", "null", '"1"', "[1]"]
)
def test_a_metric_of_the_server_is_a_finite_number(value: str) -> None:
    verified = Verified.model_validate_json(f'{{"reward": 1, "odd": {value}, "steps": 3, "final_score": -0.5}}')
    assert verified.metrics == {"steps": 3.0, "final_score": -0.5}


def test_what_is_no_metric_takes_the_place_of_none() -> None:
    odd, even = ({f"{of}_{n}": value for n in range(MOST_METRICS)} for of, value in (("odd", True), ("even", 2)))
    assert Verified.model_validate({"reward": 1, **odd, **even}).metrics == dict.fromkeys(even, 2.0)
