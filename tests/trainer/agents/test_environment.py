"""Environments over HTTP, asked by the whole driver: the contract of docs/environment.openapi.yaml, and what becomes of a service that breaks it."""

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from rljob_trainer.agents.episode import Observation, plain
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import ServiceDown
from trainer.agents.talker import Talker, first_step
from trainer.driver.bench import Bench, Characters
from trainer.rewards.serving import served

ROOT = Path(__file__).parents[3]


class Echo:
    """An episode of two steps that repeats what the policy said, and pays for shouting."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.answers: dict[str, Any] = {}
        """By route, in place of its own."""
        self.status: dict[str, list[int]] = {}
        """By route, statuses other than 200 that come first."""

    async def __call__(self, request: web.Request) -> web.Response:
        route, body = request.path.strip("/"), await request.json()
        self.asked.append((route, body, request.headers.get("X-Key", "")))
        if statuses := self.status.get(route):
            return web.Response(status=statuses.pop(0))
        return web.json_response(self.answers.get(route, self.own(route, body)))

    def own(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        if route != "step":
            return {}
        done = body["text"] == "!"
        return {"reward": 0.25 + done, "done": done, "metrics": {"turn": body["turn"]}, "text": "" if done else "[no]"}

    def count(self) -> Counter[str]:
        return Counter(route for route, _, _ in self.asked)


@pytest.fixture
async def echo():
    found = Echo()
    async with served(["/reset", "/step", "/close"], found.__call__) as url:
        found.url = url
        yield found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, echo: Echo) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    monkeypatch.setenv("ECHO_KEY", "secret")
    found = Bench(tmp_path)
    environment = {"url": echo.url, "headers": {"X-Key": "$ECHO_KEY"}}
    found.spec["rewards"] = []
    found.spec["rollout"] |= {
        "agent": {"environment": environment, "maxTurns": 4, "maxTokens": 64, "timeoutSeconds": 5},
        "sampling": {"maxTokens": 8},
    }
    return found


async def test_an_episode_is_reset_stepped_and_closed_and_its_rewards_add_up(bench: Bench, echo: Echo) -> None:
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    said = [[(s.source, "".join(map(chr, s.tokens))) for s in sample.segments[1:]] for sample in found.samples]
    assert said == [[("policy", "t1"), ("environment", "[no]"), ("policy", "!")]] * 12
    assert {s.reward for s in found.samples} == {1.5} and found.metrics["reward_metrics/turn"] == 1.0
    assert {tuple(s.response_turn_rewards) for s in found.samples} == {(0, 0.25, 0, 0, 0, 0, 1.25)}, "at the turn's end"
    assert echo.count() == {"reset": 12, "step": 24, "close": 12}
    sessions = {body["session"] for _, body, _ in echo.asked}
    assert len(sessions) == 12 and {key for _, _, key in echo.asked} == {"secret"}
    (begun,) = [body for route, body, _ in echo.asked if route == "reset" and body["session"] == min(sessions)]
    assert begun["row"]["prompt"] == begun["prompt"] and begun["row"]["data_source"] == "sum"


async def test_what_an_environment_says_first_is_behind_the_prompt(bench: Bench, echo: Echo) -> None:
    echo.answers["reset"] = {"text": "go:"}
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert all("".join(map(chr, s.prompt_tokens)).endswith("=go:") for s in found.samples)


async def test_a_reset_is_repeated_and_a_step_never_is(bench: Bench, echo: Echo) -> None:
    echo.status = {"reset": [503, 429], "step": [503]}
    found, _ = await first_step(bench, Talker("demo-rollout-0"))
    assert echo.count()["reset"] == 14
    assert found.metrics["agent/failed_service"] == found.metrics["agent/failed"] == 1.0
    assert len(found.samples) == 11 and echo.count()["close"] == 12, "also the episode that failed is closed"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"reward": "much"}, "answered to step: reward: Input should be a valid number"),
        ({"over": True}, "answered to step: over: Extra inputs are not permitted"),
        ({"text": "a", "messages": [{}]}, "text and messages exclude each other"),
        ([1], "answered to step: the answer: Input should be"),
    ],
)
async def test_an_answer_that_breaks_the_contract_fails_the_sample_with_the_field(
    bench: Bench, echo: Echo, caplog: pytest.LogCaptureFixture, answer: Any, reason: str
) -> None:
    bench.spec["train"]["steps"] = 1
    echo.answers["step"] = answer
    with pytest.raises(ConfigurationError) as caught:
        await first_step(bench, Talker("demo-rollout-0"))
    assert "spec.rollout.agent.environment.url" in str(caught.value) and reason in str(caught.value)


async def test_a_service_that_is_down_for_a_whole_step_is_no_mistake_of_the_user(bench: Bench, echo: Echo) -> None:
    echo.status["reset"] = [500] * 1000
    with pytest.raises(ServiceDown, match="status 500"):
        await first_step(bench, Talker("demo-rollout-0"))


def openapi() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docs/environment.openapi.yaml").read_text())


async def test_the_driver_asks_with_the_fields_of_the_openapi_file(bench: Bench, echo: Echo) -> None:
    await first_step(bench, Talker("demo-rollout-0"))
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict}
    for route, body, _ in echo.asked:
        described = openapi()["components"]["schemas"][route.capitalize()]
        fields = {name: kinds[field["type"]] for name, field in described["properties"].items()}
        assert set(described["required"]) == fields.keys()
        assert {name: type(value) for name, value in body.items()} == fields


def test_the_openapi_file_has_the_routes_and_the_fields_of_the_answer() -> None:
    document = openapi()
    assert set(document["paths"]) == {"/reset", "/step", "/close"}
    described = document["components"]["schemas"]["Observation"]
    assert set(described["properties"]) == set(Observation.model_fields)
    assert described["additionalProperties"] is False


async def test_a_metric_of_a_name_that_no_table_can_hold_fails_the_sample(bench: Bench, echo: Echo) -> None:
    bench.spec["train"]["steps"] = 1
    echo.answers["step"] = {"metrics": {"a b": 1}}
    with pytest.raises(ConfigurationError, match="answered to step: metrics.a b"):
        await first_step(bench, Talker("demo-rollout-0"))


def test_a_row_goes_out_without_bytes_wherever_they_stand() -> None:
    row = {"images": [{"bytes": b"x", "path": None}], "raw": [b"x"], "asked": {"on": date(2026, 1, 2)}, "n": (1, True)}
    said = {"images": [{"path": None}], "raw": [], "asked": {"on": "2026-01-02"}, "n": [1, True]}
    assert json.loads(json.dumps(plain(row))) == said
