"""An agent that knows nothing of ours but a base URL: what it says and gets over HTTP becomes a trajectory of the ids that were generated."""

import asyncio
import runpy
from pathlib import Path

import pytest
from aiohttp import web

from rljob_trainer.driver import main
from rljob_trainer.wire.rollout_client import ReplicaLost, RequestRefusedError
from rljob_trainer.wire.rollout_server import CONTEXT_TOO_LONG
from rljob_trainer.wire.weights.protocol import AttemptSuperseded
from trainer.agents.endpoint import ADD, CALLED, CLIENT, REASONING, client_of, posted, served
from trainer.agents.talker import first_step, with_agent
from trainer.agents.test_tools import END, Caller, words, written
from trainer.driver.bench import Bench

CODE = """
import json, urllib.request, urllib.error, asyncio

def post(url, **body):
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]

async def rollout(prompt, policy, row):
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    messages = [{"role": "user", "content": prompt.text}]
    while True:
        choice = await asyncio.to_thread(post, policy.base_url, model="any", messages=messages, tools=tools, temperature=0.3)
        messages.append(choice["message"] | {"refusal": None})
        if choice["finish_reason"] != "tool_calls":
            return await policy.trajectory(reward=float(len(messages)))
        for call in choice["message"]["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(arguments["a"] + arguments["b"])})
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    found = Bench(tmp_path)
    with_agent(found.spec, tmp_path, CODE, maxTokens=400, toolParser="hermes")
    found.spec["rollout"]["sampling"] = {"maxTokens": 200}
    found.spec["rewards"] = []
    return found


async def test_turns_over_http_are_recorded_as_they_were_generated(bench: Bench) -> None:
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(CALLED, "3"))
    assert written(found, "policy") == [CALLED + END, "3" + END]
    (between,) = written(found, "environment")
    assert between == "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    (prompt,) = written(found, "prompt")
    assert '"name": "add"' in prompt and prompt.endswith("<|im_start|>assistant\n"), "the template shows the tools"
    assert {s.reward for s in found.samples} == {4.0}
    assert (found.metrics["agent/turns"], found.metrics["agent/tokens_left_out"]) == (2.0, 0.0)


async def test_the_program_of_the_example_is_trained_through_its_client_library() -> None:
    """In this process, because a busy machine imports the library for long."""
    async with served((CALLED, "3")) as (session, policy):
        found = await runpy.run_path(str(CLIENT))["rollout"](session.prompt, policy, {})
    rollout = session.rollout([found.tokens])
    assert rollout is not None and rollout.left_out == 0
    by = {s: [words().decode(t.tokens) for t in rollout.segments if t.source == s] for s in ("policy", "environment")}
    assert by["policy"] == [CALLED + END, "3" + END]
    assert "<tool_response>\n3\n</tool_response>" in by["environment"][0]


ASKED = [{"role": "user", "content": "1+2="}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


async def test_a_stream_of_the_stock_client_adds_up_to_the_answer() -> None:
    async with served((CALLED, "3")) as (session, policy), client_of(policy) as client:
        how = {"model": "any", "stream": True, "stream_options": {"include_usage": True}}
        chunks = [c async for c in await client.chat.completions.create(messages=ASKED, tools=[ADD], **how)]
        *said, usage = chunks
        (call,) = said[0].choices[0].delta.tool_calls
        assert (said[0].choices[0].delta.content, call.function.name) == ("hm ", "add")
        assert said[-1].choices[0].finish_reason == "tool_calls" and usage.choices == []
        assert usage.usage.completion_tokens == len(words().encode(CALLED + END, add_special_tokens=False))
        asked = {"role": "assistant", "content": "hm ", "tool_calls": [call.model_dump(exclude={"index"})]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        async with client.chat.completions.stream(model="any", messages=[*ASKED, asked, result]) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == "3"
        rollout = session.rollout([(await policy.trajectory()).tokens])
    assert rollout is not None and (rollout.turns, rollout.left_out) == (2, 0), "a stream's ids are those generated"


async def test_several_choices_are_turns_and_the_one_that_goes_on_is_the_trajectory() -> None:
    async with served(("a", "b", "c")) as (session, policy), client_of(policy) as client:
        found = await client.chat.completions.create(model="any", messages=ASKED, n=2)
        assert [(c.index, c.message.content) for c in found.choices] == [(0, "a"), (1, "b")]
        chosen = {"role": "assistant", "content": found.choices[0].message.content}
        await client.chat.completions.create(model="any", messages=[*ASKED, chosen, {"role": "user", "content": "?"}])
        trajectory = await policy.trajectory(branches=True)
        rollout = session.rollout([trajectory.tokens, *trajectory.branches])
    assert rollout is not None and (rollout.turns, rollout.left_out, len(rollout.branches)) == (3, 0, 1)
    first = [words().decode(s.tokens) for s in rollout.segments if s.source == "policy"]
    assert first == ["a" + END, "c" + END]


async def test_log_probabilities_are_those_of_the_tokens_that_were_generated() -> None:
    async with served(("12",)) as (_, policy), client_of(policy) as client:
        found = await client.chat.completions.create(model="any", messages=ASKED, logprobs=True)
    content = found.choices[0].logprobs.content
    assert "".join(token.token for token in content) == "12" + END and {token.logprob for token in content} == {0.0}
    assert bytes(b for token in content for b in token.bytes).decode() == "12" + END


async def test_an_agent_that_is_refused_another_turn_gets_an_empty_one_that_is_cut_off(bench: Bench) -> None:
    bench.spec["rollout"]["agent"]["maxTurns"] = 1
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=(CALLED, "3"))
    assert {s.finish_reason for s in found.samples} == {"length"} and found.metrics["agent/turns"] == 1.0


@pytest.mark.parametrize("branches", [False, True])
async def test_a_conversation_that_is_begun_again_is_another_one(bench: Bench, tmp_path: Path, branches: bool) -> None:
    """What is rewritten is rendered anew; the turns that it had are a branch, or left out and counted."""
    again = CODE.replace(
        'messages.append(choice["message"] | {"refusal": None})',
        'messages = [{"role": "user", "content": "again"}]\n        break',
    )
    again += "    await asyncio.to_thread(post, policy.base_url, messages=messages)\n    return await policy.trajectory(branches=BRANCHES)\n"
    with_agent(bench.spec, tmp_path, again.replace("BRANCHES", str(branches)), maxTokens=400, toolParser="hermes")
    bench.spec["rollout"]["sampling"] = {"maxTokens": 200}
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=("first",))
    assert "again" in written(found, "prompt")[0]
    assert (found.metrics["agent/tokens_left_out"] > 0) != branches
    assert found.columns.branch.tolist() == ([0, 1] * 12 if branches else [0] * 12)


@pytest.mark.parametrize("asked", ["top_logprobs=2", "n=0", "messages=[{'content': 'no role'}]"])
async def test_what_is_not_supported_is_refused_and_fails_the_sample(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    code = (
        CODE.replace("temperature=0.3", asked) if "messages" not in asked else CODE.replace("messages=messages", asked)
    )
    code = code.replace("    while True:", "    while prompt.answer != '3':").rstrip() + "\n    return None\n"
    with_agent(bench.spec, tmp_path, code, maxTokens=400, toolParser="hermes")
    bench.spec["rollout"]["sampling"] = {"maxTokens": 200}
    with pytest.raises(Exception, match="HTTP Error 400"):
        await first_step(bench, Caller("demo-rollout-0"), script=("x",))


TOO_LONG = "9 and 7 more tokens do not fit into max-model-len 10"


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (RequestRefusedError(TOO_LONG, CONTEXT_TOO_LONG), (400, "invalid_request_error", CONTEXT_TOO_LONG, TOO_LONG)),
        (RequestRefusedError("no"), (400, "invalid_request_error", None, "no")),
        (ReplicaLost("it is away"), (503, "server_error", None, "ReplicaLost: it is away")),
        (ValueError("a bug"), (503, "server_error", None, "ValueError: a bug")),
    ],
)
async def test_a_failure_of_the_rollouts_is_said_as_openai_says_it(failure: Exception, expected: tuple) -> None:
    def fail() -> None:
        raise failure

    async with served(("never",), fail) as (_, policy):
        body = {"messages": [{"role": "user", "content": "1+2="}]}
        status, error = await posted(f"{policy.base_url}/chat/completions", body)
    assert (status, error["type"], error["code"], error["message"]) == expected


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"tool_choice": "required"},
            "tool_choice: 'required' is not served, only auto and none: samples are drawn from",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice: {'type': 'function'"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: false is not served: samples are drawn from"),
        ({"functions": [{"name": "add"}]}, "functions is not served: give functions as `tools`"),
        ({"function_call": "auto"}, "function_call is not served: give functions as `tools`"),
        ({"response_format": {"type": "json_object"}}, "response_format: json_object is not served, only text"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "a part of a message is an image, and the policy reads texts only: spec.data.imageKey is unset",
        ),
        ({"messages": [{"role": "user", "content": ["1+2="]}]}, "a part of a message is of type str"),
    ],
)
async def test_what_is_not_served_is_refused_with_the_reason(asked: dict, says: str) -> None:
    async with served(()) as (_, policy):
        body = {"messages": ASKED, "tools": [ADD]} | asked
        status, error = await posted(f"{policy.base_url}/chat/completions", body)
    assert status == 400 and error["message"].startswith(says)


async def test_calls_are_not_read_where_no_tool_may_be_chosen() -> None:
    async with served((CALLED,)) as (_, policy), client_of(policy) as client:
        how = {"model": "any", "tools": [ADD], "tool_choice": "none"}
        found = await client.chat.completions.create(messages=ASKED, **how)
    assert found.choices[0].message.content == CALLED and found.choices[0].finish_reason == "stop"


async def test_reasoning_is_apart_from_the_content_and_needs_not_be_repeated() -> None:
    """A client that says nothing of it continues the same ids."""
    async with (
        served(("hm</think>3", "</think>4"), parsers=REASONING) as (session, policy),
        client_of(policy) as client,
    ):
        found = await client.chat.completions.create(model="any", messages=ASKED)
        message = found.choices[0].message
        assert (message.content, message.reasoning) == ("3", "hm")
        again = [*ASKED, {"role": "assistant", "content": "3"}, {"role": "user", "content": "?"}]
        await client.chat.completions.create(model="any", messages=again)
        rollout = session.rollout([(await policy.trajectory()).tokens])
    assert rollout is not None and (rollout.turns, rollout.left_out) == (2, 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([1], "the body: Input should be a valid"),
        ({}, "messages: Field required"),
        ({"messages": ["role"]}, "messages.0: Input should be a valid dictionary"),
        ({"messages": [], "max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        ({"messages": [], "n": 129}, "n: Input should be less than or equal to 128"),
        ({"messages": [], "top_logprobs": 1}, "top_logprobs: Input should be less than or equal to 0"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_with_the_place(body: object, says: str) -> None:
    async with served(()) as (_, policy):
        status, error = await posted(f"{policy.base_url}/chat/completions", body)
    assert status == 400 and error["message"].startswith(says)


async def test_another_route_of_openai_s_is_not_found_in_its_words() -> None:
    async with served(()) as (_, policy):
        status, error = await posted(f"{policy.base_url}/embeddings", {})
    assert (status, error["type"]) == (404, "invalid_request_error")


class Fenced(Caller):
    """Has seen a later attempt."""

    async def _generate(self, request: web.Request) -> web.Response:
        return web.json_response({"attempt": 7}, status=409)


async def test_a_failure_of_the_rollouts_ends_the_attempt_and_is_not_the_agent_s(bench: Bench) -> None:
    with pytest.raises(AttemptSuperseded, match="attempt 7"):
        await first_step(bench, Fenced("demo-rollout-0"))


async def test_waiting_for_the_policy_over_http_is_not_on_the_agents_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text(CODE)
    agent, loop, skipped = runpy.run_path(str(tmp_path / "agent.py"))["rollout"], asyncio.get_running_loop(), [0.0]
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + sum(skipped))
    async with served(("3",), lambda: skipped.append(10_000.0)) as (session, policy), session.own_time.limited():
        await agent(session.prompt, policy, {})
    assert len(skipped) == 2 and not session.own_time.is_over
