"""An agent that asks the policy over HTTP, and what asks in its place."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from openai import AsyncOpenAI
from tokenizers import AddedToken

from rljob_api.families import ParserNames
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Policy
from rljob_trainer.agents.conversations import ResponseParser
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.session import Response, Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.server.parser_process import parsed
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest
from rljob_trainer.wire.trajectory import Ints, Segment
from trainer.agents.test_tools import END, words
from trainer.data import templates

CLIENT = Path(__file__).parents[3] / "examples/calculator/client.py"
HERMES = ParserNames("hermes", "")
CALLED = 'hm <tool_call>\n{"name": "add",   "arguments": {"a": 1, "b": 2}}\n</tool_call>'
"""With blanks that a template would not write: a text that is rendered again has other tokens."""


@cache
def thinking() -> Any:
    """A tokenizer with the tokens around reasoning."""
    found = templates.tokenizer.__wrapped__(templates.QWEN, END)
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<think>", "</think>")])
    return found


async def parse(request: ParseRequest) -> Parsed:
    """As a rollout server, with vLLM's parsers."""
    return await asyncio.to_thread(parsed, thinking(), request)


@asynccontextmanager
async def served(
    answers: Sequence[str],
    meanwhile: Callable[[], None] = lambda: None,
    parsers: ParserNames = HERMES,
) -> AsyncIterator[tuple[Session, Policy]]:
    """A trajectory of this process, and its policy, which gives these answers. `meanwhile` is called while it generates."""
    said = iter(answers)

    async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
        meanwhile()
        await asyncio.sleep(0)
        tokens = np.array(words().encode(next(said) + END, add_special_tokens=False), np.int32)
        return (Segment(tokens, "policy", np.zeros(len(tokens), np.float32), 0),), False

    spec = AgentSpec.model_validate({"python": {"path": str(CLIENT)}, "maxTurns": 4, "maxTokens": 400})
    prompt = Prompt(0, (1,), "1+2=", "3", "sum")
    session = Session(
        spec, prompt, Sampling(max_tokens=200), words(), ChatTemplate(), sample, ResponseParser(parsers, {}, parse)
    )
    endpoint = Endpoint()
    await endpoint.start()
    try:
        yield session, Policy(session.answer, endpoint.open(session))
    finally:
        await endpoint.stop()


@asynccontextmanager
async def client_of(policy: Policy) -> AsyncIterator[AsyncOpenAI]:
    """The stock library."""
    async with AsyncOpenAI(base_url=policy.base_url, api_key="any", max_retries=0) as client:
        yield client


REASONING = ParserNames("hermes", "deepseek_r1")
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
FUNCTION = {"type": "function", "name": "add", "description": "", "parameters": {}}


async def posted(url: str, body: object) -> tuple[int, dict]:
    """Status and error."""
    async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
        return response.status, (await response.json())["error"]
