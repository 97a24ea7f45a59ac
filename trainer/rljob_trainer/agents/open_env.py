"""Environments as servers of OpenEnv: a session is a WebSocket, whose messages are `{"type": "reset" | "step" | "close", "data": ...}`, answered with
`{"type": "observation" | "error", "data": ...}`. The protocol is that of openenv 0.10 (core/env_server/types.py); the package is not needed here."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from rljob_api.spec.agent import OpenEnv
from rljob_trainer.agents.api import Turn
from rljob_trainer.agents.episode import Nonsense, Observation, observed, plain
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.service import turn_by_turn
from rljob_trainer.agents.session import Session
from rljob_trainer.rewards.http_service import (
    FIRST_WAIT_SECONDS,
    LARGEST_ANSWER,
    LONGEST_WAIT_SECONDS,
    SHOWN,
    fill_in,
    without_headers,
)
from rljob_trainer.rewards.request import RewardFailed, RewardFailureKind

FIELD = "spec.rollout.agent.openEnv"
FULL = "CAPACITY_REACHED"
"""The server's word for one session too many: it may not have noticed yet that another has ended."""
FULL_TRIES = 8
CLOSE_SECONDS = 1.0


class OpenEnvServer:
    """Call `start` before the first episode and `stop` after the last."""

    field = f"{FIELD}.url"

    def __init__(self, spec: OpenEnv):
        self.url, self.at_once, self._spec = spec.url.rstrip("/"), spec.sessions, spec
        self._client: aiohttp.ClientSession | None = None
        self._headers: dict[str, str] = {}

    async def start(self) -> None:
        """Raises ConfigurationError for a variable in the headers that is not set."""
        self._headers = fill_in(f"{FIELD}.headers", self._spec.headers)
        timeout = aiohttp.ClientTimeout(total=None)  # the agent's own bounds everything
        connector = aiohttp.TCPConnector(limit=0)
        self._client = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def play(self, session: Session, row: Mapping[str, Any]) -> Rollout | None:
        """See EnvironmentService."""
        episode = _OpenEnvSession(self, plain(row) | self._spec.arguments)
        try:
            return await turn_by_turn(session, episode)
        finally:
            await episode.close()

    async def connected(self) -> aiohttp.ClientWebSocketResponse:
        assert self._client is not None, "start comes first"
        limits = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
        return await self._client.ws_connect(f"{self.url}/ws", timeout=limits, max_msg_size=LARGEST_ANSWER)

    def observation(self, answer: Mapping[str, Any], asked: str) -> Observation:
        """Raises Nonsense."""
        said = answer.get("observation")
        if not isinstance(said, Mapping):
            raise Nonsense(f"answered to {asked} without an observation: {json.dumps(answer)[:SHOWN]}")
        text = said.get(self._spec.observation_key)
        key = "messages" if isinstance(text, list) else "text"
        reward = answer.get("reward")
        whole = {key: text or "", "reward": reward if reward is not None else 0.0, "done": answer.get("done", False)}
        return observed({k: v for k, v in whole.items() if v != ""}, asked)

    def action(self, text: str) -> dict[str, str]:
        return {self._spec.action_key: text}

    def failed(self, kind: RewardFailureKind, reason: str) -> RewardFailed:
        return RewardFailed(kind, self.field, self.url, without_headers(reason, self._headers))


class _Full(Exception):
    """The server has as many sessions as it may."""


class _OpenEnvSession:
    """Its calls raise RewardFailed, too."""

    def __init__(self, server: OpenEnvServer, begin: dict[str, Any]):
        self._server, self._begin = server, begin
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self) -> Observation:
        for repetition in range(FULL_TRIES):
            try:
                return await self._asked("reset", self._begin)
            except _Full:
                await self.close()
                await asyncio.sleep(min(FIRST_WAIT_SECONDS * 2**repetition, LONGEST_WAIT_SECONDS))
        reason = f"has as many sessions as it may, asked {FULL_TRIES} times; spec.rollout.agent.openEnv.sessions"
        raise self._server.failed("service", f"{reason} may not be more than the server's max_concurrent_envs")

    async def step(self, number: int, turn: Turn) -> Observation:
        return await self._asked("step", self._server.action(turn.text))

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None and not socket.closed:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await socket.send_json({"type": "close"})
            await socket.close()

    async def _asked(self, what: str, data: dict[str, Any]) -> Observation:
        try:
            if self._socket is None:
                self._socket = await self._server.connected()
            with contextlib.suppress(ConnectionError):  # it has ended the session, and says why
                await self._socket.send_json({"type": what, "data": data})
            message = await self._socket.receive()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._server.failed("service", f"{type(error).__name__}: {error}") from error
        if message.type != aiohttp.WSMsgType.TEXT:
            raise self._server.failed("service", f"ended the session, asked for {what}: {self._socket.close_code}")
        return self._server.observation(self._parsed(message.data, what), what)

    def _parsed(self, text: str, what: str) -> Mapping[str, Any]:
        try:
            answer = json.loads(text)
            kind, data = answer["type"], dict(answer["data"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Nonsense(f"answered to {what} {text[:SHOWN]!r}, which is no message of OpenEnv") from error
        if kind == "error" and data.get("code") == FULL and what == "reset":
            raise _Full
        if kind != "observation":
            raise self._server.failed("service", f"answered to {what}: {_reason(data)[:SHOWN]}")
        return data


def _reason(data: Mapping[str, Any]) -> str:
    """What an error says: of an action that the environment does not take, also the fields."""
    errors = [f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}" for e in data.get("errors") or ()]
    return "; ".join((str(data.get("message", data)), *errors))
