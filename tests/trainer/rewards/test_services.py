"""Rewards over HTTP, against real servers in this process."""

import asyncio
import logging
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web

from rljob_api.names import ENV_ROLLOUT_TOKEN
from rljob_api.spec.model import HttpReward, RewardSpec, VllmReward
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards import http_service
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest, ServiceDown
from trainer.rewards.serving import Answering, served

CASE = RewardRequest("1+1=", "2", "2", "sum", tokens=(5, 6, 7, 1))


class Service(Answering):
    """Answers each request with the next of `answers` (the last again and again): a JSON value, a status, or None for a hang-up."""

    paths = ["/reward", "/pooling"]

    def __init__(self, *answers: object, delay: float = 0.0):
        self.answers, self.delay = list(answers), delay
        self.bodies: list[dict] = []
        self.headers: list[dict] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.delay)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            request.transport.close()
        if isinstance(answer, int):
            text = f"for {request.headers.get('Authorization')}"
            return web.Response(status=answer, text=text, headers={"Location": "/elsewhere"})
        if isinstance(answer, str):
            return web.Response(text=answer)
        return web.json_response(answer)


async def ask(service: Service, case: RewardRequest = CASE, seconds: float = 5.0, **fields: object) -> float:
    http = HttpReward(url=f"{service.url}/reward", **fields)
    return await scored(RewardSpec(http=http, timeout_seconds=seconds), case)


async def scored(spec: RewardSpec, case: RewardRequest = CASE) -> float:
    manager = RewardManager([spec])
    try:
        await manager.start()
        return (await manager.score(case)).score
    finally:
        await manager.stop()


async def failure(call: Callable) -> RewardFailed:
    with pytest.raises(RewardFailed) as caught:
        await call
    return caught.value


async def test_a_service_sees_the_case_and_its_number_is_the_reward():
    async with Service({"reward": 0.25}) as service:
        assert await ask(service) == 0.25
        assert service.bodies == [{"prompt": "1+1=", "response": "2", "answer": "2", "data_source": "sum"}]


@pytest.mark.parametrize("trouble", [None, 429, 500, 503])
async def test_a_passing_trouble_is_asked_again(trouble):
    async with Service(trouble, trouble, {"reward": 1}) as service:
        assert await ask(service) == 1.0
        assert len(service.bodies) == 3


async def test_repetitions_end_after_their_number():
    async with Service(503) as service:
        failed = await failure(ask(service, retries=1))
        assert (failed.kind, len(service.bodies)) == ("service", 2) and "status 503" in str(failed)
        assert failed.field == "spec.rewards[0].http.url"


async def test_a_refusal_and_a_redirect_are_not_repeated():
    for status in (400, 302):
        async with Service(status) as service:
            failed = await failure(ask(service))
            assert (failed.kind, len(service.bodies)) == ("service", 1) and f"status {status}" in str(failed)


async def test_time_bounds_a_call_with_all_its_repetitions():
    async with Service({"reward": 1}, delay=2) as service:
        assert (await failure(ask(service, seconds=0.2))).kind == "timeout"
    async with Service(503) as service:
        failed = await failure(ask(service, seconds=0.5, retries=100))
        assert failed.kind == "timeout" and 2 <= len(service.bodies) < 10


async def test_a_call_may_take_longer_than_the_http_client_gives_it_by_itself(monkeypatch):
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    async with Service({"reward": 1}, delay=0.5) as service:
        assert await ask(service) == 1.0


async def test_waiting_for_a_turn_is_not_part_of_a_calls_time():
    async with Service({"reward": 1}, delay=0.15) as service:
        spec = RewardSpec(http=HttpReward(url=f"{service.url}/reward"), timeout_seconds=2.0)
        manager = RewardManager([spec])
        await manager.start()
        found = await asyncio.gather(*(manager.score(CASE) for _ in range(500)))
        assert sum(reward.score for reward in found) == 500
        await manager.stop()


@pytest.mark.parametrize(
    "answer",
    [{"score": 1}, {"reward": None}, {"reward": True}, {"reward": "1"}, {"reward": 10**400}, [1], "NaN", "not json"],
)
async def test_what_is_not_one_finite_number_is_a_failure(answer):
    async with Service(answer) as service:
        assert (await failure(ask(service))).kind == "value"


async def test_nobody_there_is_a_failure():
    failed = await failure(scored(RewardSpec(http=HttpReward(url="http://127.0.0.1:1/", retries=0))))
    assert failed.kind == "service"
    assert isinstance(failed.as_error(), ServiceDown), "a restart may find it up again"


async def test_headers_come_from_the_environment_and_are_never_shown(monkeypatch, caplog):
    monkeypatch.setenv("REWARD_TOKEN", "s3cret")
    caplog.set_level(logging.DEBUG)
    async with Service({"reward": 1}, 400) as service:
        headers = {"Authorization": "Bearer $REWARD_TOKEN", "X-Plain": "a$"}
        assert await ask(service, headers=headers) == 1.0
        assert service.headers[0]["Authorization"] == "Bearer s3cret" and service.headers[0]["X-Plain"] == "a$"
        failed = await failure(ask(service, headers=headers))
        assert "400: for ***" in str(failed) and "s3cret" not in str(failed) + str(failed.as_error()) + caplog.text


@pytest.mark.parametrize("name", ["REWARD_TOKEN", ENV_ROLLOUT_TOKEN])
async def test_a_variable_that_is_not_set_or_not_for_rewards_is_told_before_anything_runs(monkeypatch, name):
    monkeypatch.delenv("REWARD_TOKEN", raising=False)
    monkeypatch.setenv(ENV_ROLLOUT_TOKEN, "secret")
    spec = HttpReward(url="http://127.0.0.1:1/", headers={"Authorization": f"Bearer ${name}"})
    with pytest.raises(ConfigurationError, match="no such environment variable") as caught:
        await scored(RewardSpec(http=spec))
    assert (caught.value.field, caught.value.value) == ("spec.rewards[0].http.headers.Authorization", f"${name}")


def pooled(data: object) -> dict:
    """As vLLM 0.32 answers (vllm/entrypoints/pooling/pooling/protocol.py, PoolingResponse)."""
    return {
        "id": "pool-1",
        "object": "list",
        "created": 1,
        "model": "rm",
        "data": [{"index": 0, "object": "pooling", "data": data}],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


@pytest.mark.parametrize("data", [[0.5], [[0.1], [0.2], [0.5]]])
async def test_a_vllm_reward_model_gives_its_raw_score_of_the_last_token(data):
    async with Service(pooled(data)) as service:
        assert await scored(RewardSpec(vllm=VllmReward(url=service.url + "/"), weight=2.0)) == 1.0
        assert service.bodies == [{"input": [5, 6, 7, 1], "use_activation": False}]


@pytest.mark.parametrize("data", [[0.1, 0.9], [[0.1, 0.9]], [], "base64"])
async def test_a_vllm_model_of_several_labels_is_a_failure(data):
    async with Service(pooled(data)) as service:
        assert (await failure(scored(RewardSpec(vllm=VllmReward(url=service.url))))).kind == "value"


async def test_a_secret_with_a_line_end_is_refused_before_the_first_call(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret\n")
    async with Service({"reward": 1}) as service:
        with pytest.raises(ConfigurationError, match=r"headers.Authorization = \$JUDGE_KEY: .* line end") as caught:
            await ask(service, headers={"Authorization": "Bearer $JUDGE_KEY"})
    assert "secret" not in str(caught.value)


async def test_an_answer_of_brackets_without_end_is_no_json():
    async with Service("[" * 100_000) as service:
        with pytest.raises(RewardFailed, match="which is not JSON"):
            await ask(service)


async def test_an_answer_beyond_the_limit_is_a_failure_that_names_service_and_limit(monkeypatch):
    monkeypatch.setattr(http_service, "LARGEST_ANSWER", 1000)
    async with Service({"reward": 1, "why": "x" * 1000}) as service:
        found = await failure(ask(service))
        assert found.kind == "value" and "answered more than 1000 bytes, which is the limit" in str(found)
        assert f"{service.url}/reward" in str(found.as_error())
        assert len(service.bodies) == 1, "it would be as long again"


async def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(http_service, "LARGEST_ANSWER", 1000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 100)

    async with served(["/reward"], endless) as url:
        spec = RewardSpec(http=HttpReward(url=f"{url}/reward"), timeout_seconds=20)
        assert (await failure(scored(spec))).kind == "value"
