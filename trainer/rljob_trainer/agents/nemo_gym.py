"""Resources servers of NeMo Gym. A trajectory is what the library's own simple_agent makes of a row: `/seed_session`, the policy's turns with what
each call of a tool answers at the address of its name, and `/verify`, which gives the reward. A cookie tells sessions apart.

As in nemo-gym 0.7 (responses_api_agents/simple_agent/app.py). The package is not needed here.
"""

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from rljob_api.metrics import OWN_NAME
from rljob_api.spec.agent import NemoGym
from rljob_trainer.agents.episode import MOST_SAID, Nonsense, plain
from rljob_trainer.agents.messages import first_of
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.responses import ResponsesRequest, respond
from rljob_trainer.agents.session import Session
from rljob_trainer.rewards.http_service import LARGEST_ANSWER, SHOWN, fill_in, without_headers
from rljob_trainer.rewards.request import RewardFailed, RewardFailureKind

FIELD = "spec.rollout.agent.nemoGym"
CREATE = "responses_create_params"
"""Column of the conversation that the policy begins with, and of the tools that it may call."""
ASKED = ("input", "instructions", "tools", "tool_choice", "max_output_tokens")
"""What is read of it. Temperature and the like are the job's."""
MOST_CALLS = 128
"""Of one turn: the others get TOO_MANY."""
TOO_MANY = f"too many calls: only the first {MOST_CALLS} of a turn are made"
MOST_METRICS = 64


class Verified(BaseModel):
    """What is read of the answer to `/verify`."""

    model_config = ConfigDict(extra="allow")

    reward: FiniteFloat
    mask_sample: bool = False
    """The reward says nothing of the policy: the environment failed."""
    failure_kind: str | None = None
    failure_reason: str | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Other finite numbers, by names that a metric may have."""
        numbers = {name: _number(value) for name, value in (self.model_extra or {}).items() if OWN_NAME.fullmatch(name)}
        finite = [(name, number) for name, number in numbers.items() if math.isfinite(number)]
        return dict(finite[:MOST_METRICS])


class NemoGymServer:
    """Call `start` before the first trajectory and `stop` after the last."""

    field = f"{FIELD}.url"

    def __init__(self, spec: NemoGym):
        self.url, self.at_once, self._spec = spec.url.rstrip("/"), spec.sessions, spec
        self._headers: dict[str, str] = {}
        self._connector: aiohttp.TCPConnector | None = None

    async def start(self) -> None:
        """Raises ConfigurationError for a variable in the headers that is not set."""
        self._headers = fill_in(f"{FIELD}.headers", self._spec.headers)
        self._connector = aiohttp.TCPConnector(limit=0)

    async def stop(self) -> None:
        if self._connector is not None:
            await self._connector.close()

    async def play(self, session: Session, row: Mapping[str, Any]) -> Rollout | None:
        """Raises Nonsense, PolicyError and RewardFailed."""
        row = plain(row)
        asked = _asked(row.get(CREATE))
        async with self._session() as environment:
            await environment.post("seed_session", row)
            response = await _answered(session, asked, environment)
            verified = await environment.verified({**row, "response": response})
        rollout = session.rollout(await session.answer("sequences", {"branches": False}))
        return rollout and replace(rollout, reward=verified.reward, metrics=verified.metrics)

    @asynccontextmanager
    async def _session(self) -> "AsyncIterator[_Environment]":
        timeout = aiohttp.ClientTimeout(total=None)  # the agent's own bounds everything
        jar = aiohttp.CookieJar(unsafe=True)  # the address of a server may be a number
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, cookie_jar=jar, connector=self._connector, connector_owner=False
        ) as client:
            yield _Environment(self, client)

    def failed(self, kind: RewardFailureKind, reason: str) -> RewardFailed:
        return RewardFailed(kind, self.field, self.url, without_headers(reason, self._headers))


class _Environment:
    """One session of the server."""

    def __init__(self, server: NemoGymServer, client: aiohttp.ClientSession):
        self._server, self._client = server, client

    async def post(self, route: str, body: Any) -> str:
        """What the server says, with status 200. Raises RewardFailed and Nonsense."""
        status, text = await self._said(route, body, LARGEST_ANSWER)
        if status != 200:
            raise self._server.failed("service", f"answered to {route} with status {status}: {text[:SHOWN]}")
        return text

    async def verified(self, body: Mapping[str, Any]) -> Verified:
        text = await self.post("verify", body)
        try:
            found = Verified.model_validate_json(text)
        except ValidationError as error:
            raise Nonsense(f"answered to verify: {first_of(error)}") from error
        if found.mask_sample:
            reason = found.failure_reason or found.failure_kind or "it says that the reward is no measurement"
            raise self._server.failed("service", f"masks the sample: {reason[:SHOWN]}")
        return found

    async def called(self, call: Mapping[str, Any], known: set[str]) -> str:
        """What a tool answers, which the policy reads, also where it is an error."""
        name = str(call["name"])
        if name not in known:
            return json.dumps({"error": f"there is no function {name}"})
        try:
            arguments = json.loads(call["arguments"])
        except (ValueError, RecursionError) as error:
            return json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
        return (await self._said(quote(name, safe=""), arguments, MOST_SAID))[1]

    async def _said(self, route: str, body: Any, most: int) -> tuple[int, str]:
        """Status and text, of at most so many bytes."""
        try:
            async with self._client.post(f"{self._server.url}/{route}", json=body, allow_redirects=False) as answer:
                said = bytearray()
                async for piece in answer.content.iter_any():
                    said += piece
                    if len(said) > most:
                        raise Nonsense(f"answered to {route} with more than {most} bytes, which is the limit")
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._server.failed("service", f"{type(error).__name__}: {error}") from error
        return answer.status, said.decode(errors="replace")


def _number(value: Any) -> float:
    """NaN for what is no number, as a boolean, and for an integer beyond every float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _asked(create: Any) -> ResponsesRequest:
    """Raises Nonsense."""
    if not isinstance(create, Mapping):
        raise Nonsense(f"plays rows of NeMo Gym's data, and this one has no column {CREATE!r}")
    try:
        return ResponsesRequest.model_validate({key: create[key] for key in ASKED if create.get(key) is not None})
    except ValidationError as error:
        raise Nonsense(f"plays rows of NeMo Gym's data, and in {CREATE} of this one {first_of(error)}") from error


async def _answered(session: Session, asked: ResponsesRequest, environment: _Environment) -> dict[str, Any]:
    """The last response, with all that was said since the beginning as its output. Raises as `play`."""
    begin = [{"role": "user", "content": asked.input}] if isinstance(asked.input, str) else asked.input
    known = {str(tool.get("name")) for tool in asked.tools or ()}
    said: list[dict[str, Any]] = []
    while True:
        response = await respond(session, asked.model_copy(update={"input": [*begin, *said]}))
        if response["usage"]["output_tokens"]:  # else there was no room for another turn
            said += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls or response["incomplete_details"]:
            return response | {"output": said, "usage": None}
        for number, call in enumerate(calls):
            output = await environment.called(call, known) if number < MOST_CALLS else TOO_MANY
            said.append({"type": "function_call_output", "call_id": call["call_id"], "output": output})
