"""Servers of OpenEnv, asked by the whole driver: a session for each trajectory, and what becomes of those that a server fails. The library's own
server runs in the extra tests, because the library needs another version of mcp than vLLM; the others have one that answers as that does."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_trainer.driver import main
from rljob_trainer.rewards.request import ServiceDown
from trainer.agents.libraries import served_by
from trainer.agents.talker import Talker, first_step
from trainer.agents.test_environment_libraries import with_rows
from trainer.driver.bench import Bench, Characters
from trainer.rewards.serving import running

SERVER = Path(__file__).with_name("open_env_server.py")
SESSIONS = 4


class Countdown:
    """What open_env_server.py does, with the messages of openenv 0.10."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.open = 0

    async def __call__(self, request: web.Request) -> web.WebSocketResponse:
        session = web.WebSocketResponse()
        await session.prepare(request)
        if self.open >= SESSIONS:
            await session.send_json(error("CAPACITY_REACHED", "Server at capacity: 4/4 sessions active."))
            await session.close()
            return session
        self.open += 1
        try:
            left = 0
            async for message in session:
                left = await self._answered(session, json.loads(message.data), left)
        finally:
            self.open -= 1
        return session

    async def _answered(self, session: web.WebSocketResponse, asked: dict[str, Any], left: int) -> int:
        data = asked["data"] if asked["type"] != "close" else {}
        if asked["type"] == "reset":
            self.begun.append(data)
            await session.send_json(observation(f"[from {data['start']}]", None, False))
            return int(data["start"])
        if asked["type"] == "step" and data["message"] == "raise":
            await session.send_json(error("EXECUTION_ERROR", "out of order"))
        elif asked["type"] == "step" and data["message"] in ("flood", "number"):
            await session.send_json(observation("x" * 2_000_000 if data["message"] == "flood" else 7, None, False))
        elif asked["type"] == "step":
            await session.send_json(observation(f"[{left - 1}]", 0.5, left == 1))
        return left - 1


def observation(prompt: Any, reward: float | None, done: bool) -> dict[str, Any]:
    data = {"observation": {"metadata": {}, "prompt": prompt}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


@asynccontextmanager
async def own_server() -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.get("/ws", Countdown().__call__)])
    async with running(app) as address:
        yield address


def library_server() -> AbstractAsyncContextManager[str]:
    return served_by("openenv==0.10.0", SERVER)


@pytest.fixture(params=[own_server, pytest.param(library_server, marks=pytest.mark.extra)])
async def bench(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    found = Bench(tmp_path)
    async with request.param() as url:
        found.spec["rewards"] = []
        server = {"url": url, "observationKey": "prompt", "sessions": SESSIONS}
        found.spec["rollout"] |= {
            "agent": {"openEnv": server, "maxTurns": 4, "maxTokens": 64, "timeoutSeconds": 60},
            "sampling": {"maxTokens": 8},
        }
        with_rows(found, [{"prompt": f"{a}=", "start": 2, "answer": "", "data_source": ""} for a in range(12)])
        yield found


async def test_a_session_is_reset_with_the_row_and_stepped_to_its_end(bench: Bench) -> None:
    found, _ = await first_step(bench, Talker("demo-rollout-0"), last=9)
    assert len(found.samples) == 12 and {s.reward for s in found.samples} == {1.0}
    for sample in found.samples:
        said = [(s.source, "".join(map(chr, s.tokens))) for s in sample.segments]
        assert said[0][1].endswith("=[from 2]")
        assert said[1:] == [("policy", "t2"), ("environment", "[1]"), ("policy", "t3")]


@pytest.mark.parametrize(
    ("word", "kind", "reason"),
    [
        ("raise", "service", "answered to step: out of order"),
        ("flood", "value", "answered to step: the answer: Value error, 2000000 characters"),
        ("number", "value", "answered to step: text: Input should be a valid string"),
    ],
)
async def test_a_session_that_the_server_fails_fails_its_sample(
    bench: Bench, caplog: pytest.LogCaptureFixture, word: str, kind: str, reason: str
) -> None:
    """Rows that start at 1 end with the first turn, before the policy says the word."""
    rows = [{"prompt": f"{a}=", "start": 1 + a % 2, "answer": "", "data_source": ""} for a in range(12)]
    with_rows(bench, rows)
    bench.spec["train"]["promptsPerStep"] = 12
    found, _ = await first_step(bench, Talker("demo-rollout-0"), script=("", "a", word))
    assert len(found.samples) == 18 and found.metrics[f"agent/failed_{kind}"] == found.metrics["agent/failed"] == 18.0
    assert f"spec.rollout.agent.openEnv.url: {reason}" in caplog.text


async def test_a_server_with_fewer_sessions_than_the_spec_says_is_asked_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.spec["rollout"]["agent"]["openEnv"]["sessions"] = SESSIONS + 1
    found, _ = await first_step(bench, Talker("demo-rollout-0"), last=9)
    assert len(found.samples) == 12, "who is refused comes back while others end"


async def test_a_server_that_is_not_there_ends_the_attempt_and_not_the_job(bench: Bench) -> None:
    bench.spec["rollout"]["agent"]["openEnv"]["url"] = "http://127.0.0.1:9"
    with pytest.raises(ServiceDown, match=r"openEnv.url = http://127.0.0.1:9: .*Connect"):
        await first_step(bench, Talker("demo-rollout-0"))
