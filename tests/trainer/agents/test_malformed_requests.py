"""An agent may say any JSON: what cannot be read is refused, and never taken for a failure of the rollouts, which would end the attempt."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from rljob_trainer.agents.api import PolicyError
from trainer.agents.endpoint import ADD, FUNCTION, posted, served

WRONG = (None, 5, True, "x", [], ["x"], [[]], {}, {"type": ["text"]})
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "add"},
    {"role": "user", "content": [{"type": "text", "text": "1+2="}]},
    {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "name": "add", "content": "3"},
]
INPUT = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+2="}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "3"},
]
CHAT = {
    "messages": MESSAGES,
    "tools": [ADD | {"function": {"name": "add", "description": "", "parameters": PARAMETERS}}],
    "tool_choice": "auto",
    "stop": [";"],
    "max_tokens": 5,
    "stream_options": {},
    "response_format": {"type": "text"},
}
RESPONSES = {
    "input": INPUT,
    "instructions": "add",
    "tools": [FUNCTION | {"parameters": PARAMETERS}],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
}


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """Of everything in it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*at, key)
        yield from places(part, (*at, key))


def spoilt(value: Any) -> Iterator[Any]:
    """Copies in which one place is of another JSON type."""
    for *path, last in places(value):
        for wrong in WRONG:
            found = inner = json.loads(json.dumps(value))
            for key in path:
                inner = inner[key]
            inner[last] = wrong
            yield found


@pytest.mark.parametrize(("route", "body"), [("chat/completions", CHAT), ("responses", RESPONSES)])
async def test_a_request_with_any_wrong_type_is_answered_or_refused_and_fails_nothing(route: str, body: dict) -> None:
    statuses = set()
    async with served(("3",) * 4) as (session, policy), aiohttp.ClientSession() as client:
        session.reply = asyncio.get_running_loop().create_future()
        for asked in spoilt(body):
            async with client.post(f"{policy.base_url}/{route}", json=asked) as response:
                assert response.status in (200, 400), (asked, await response.text())
                statuses.add(response.status)
            assert not session.reply.done(), asked
    assert statuses == {200, 400}


async def test_messages_of_a_function_with_any_wrong_type_raise_policy_error() -> None:
    async with served(("3",) * 4) as (_, policy):
        turn = await policy.generate(MESSAGES[:2])
        assert turn is not None
        refused = 0
        for asked in spoilt(MESSAGES):
            if all(isinstance(message, dict) for message in asked):
                for saying in (policy.generate(asked), policy.reply(turn.whole, asked)):
                    try:
                        await saying
                    except PolicyError:
                        refused += 1
    assert refused > 100


@pytest.mark.parametrize("tool", [{}, {"function": 5}, {"function": {}}, {"function": {"name": "f", "parameters": []}}])
async def test_what_is_no_function_is_refused_before_a_turn_is_generated(tool: dict) -> None:
    async with served(()) as (_, policy):
        with pytest.raises(PolicyError, match=r"tools: function"):
            await policy.generate([{"role": "user", "content": "1+2="}], tools=[tool])


@pytest.mark.parametrize(
    ("route", "asked", "says"),
    [
        ("responses", {"input": [{"type": "reasoning", "content": 5}]}, "content: 5 is neither a text nor a list"),
        ("responses", {"input": [{"type": "reasoning", "content": ["hm"]}]}, "a part of a message is of type str"),
        ("responses", {"input": [{"role": "user", "content": 5}]}, "a message: content"),
        ("responses", {"input": [{"content": "x"}]}, "a message: role: Input should be a valid string"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "a part of a message"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"text": 5}]}]}, "a part of a message has"),
        ("chat/completions", {"messages": [{"role": "judge", "content": "x"}]}, "a message has the unknown role 'jud"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "a message: tool_calls.0.function.name: Field required",
        ),
    ],
)
async def test_a_malformed_message_is_refused_with_the_place(route: str, asked: dict, says: str) -> None:
    async with served(()) as (_, policy):
        status, error = await posted(f"{policy.base_url}/{route}", asked)
    assert status == 400 and error["message"].startswith(says), error
