"""Agents whose process is lost in the middle of a trajectory, and what became of that."""

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.families import ParserNames
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Policy, PolicyError, Trajectory, Turn
from rljob_trainer.agents.chat_completions import ChatRequest, complete
from rljob_trainer.agents.conversations import ResponseParser
from rljob_trainer.agents.history import History, read
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.responses import ResponsesRequest, respond
from rljob_trainer.agents.session import Response, Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest
from rljob_trainer.wire.trajectory import Ints, Segment
from trainer.agents.test_tools import END, words

TURNS = 6
REFUSED = "refused"
"""Where it ends a turn, the rollouts refuse that one."""
PROMPT = tuple(words().encode("1+2=", add_special_tokens=False))


async def deterministic(context: Ints, sampling: Sampling, turn: int) -> Response:
    """What it says depends on the context and on the turn's seed; in the middle of it weights change."""
    await asyncio.sleep(0)
    if sampling.stop == [REFUSED]:
        raise RequestRefusedError("no")
    said = np.random.default_rng([turn, *context.tolist()]).integers(0, 10, 8)
    tokens = np.array(words().encode(" ".join(map(str, said)) + END, add_special_tokens=False), np.int32)
    halves = np.split(tokens, [3])
    return tuple(Segment(h, "policy", -h.astype(np.float32), turn + i) for i, h in enumerate(halves)), False


async def parsed(request: ParseRequest) -> Parsed:
    """A call where there are tools, and always some reasoning."""
    await asyncio.sleep(0)
    function = {"name": "add", "arguments": json.dumps({"a": request.tokens[0]})}
    calls = [{"id": f"call{request.tokens[1]:05}", "type": "function", "function": function}] if request.tools else []
    return Parsed(words().decode(request.tokens[3:6]), f"hm {request.tokens[2]}", calls)


def session_of(max_tokens: int) -> Session:
    spec = AgentSpec.model_validate({"python": {"path": "/a"}, "maxTurns": TURNS, "maxTokens": max_tokens})
    parser = ResponseParser(ParserNames("hermes", "deepseek_r1"), {}, parsed)
    return Session(
        spec, Prompt(0, PROMPT, "1+2=", "3", "sum"), Sampling(), words(), ChatTemplate(), deterministic, parser
    )


class Lost(Exception):
    """The process of the agent has ended."""


class Process:
    """That runs an agent and asks a session, until it is lost in question number `lost_in`: before it is answered, or before the answer is read."""

    def __init__(self, session: Session, lost_in: int, answered: bool) -> None:
        self._session, self._left, self._answered = session, lost_in, answered

    async def run(self, agent: "Agent") -> Trajectory:
        self._session.is_called = True
        history, last = read(pickle.loads(pickle.dumps(self._session.history())))
        policy = Policy(self._ask, "", last)
        return await agent(policy, history, self._request)

    async def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        question = self._session.answer(method, json.loads(json.dumps(arguments)))
        return pickle.loads(pickle.dumps(await self._answer_to(question)))

    async def _request(self, body: dict[str, Any]) -> dict[str, Any]:
        """As through a client library, of either API."""
        body = json.loads(json.dumps(body))
        if "input" in body:
            answer = respond(self._session, ResponsesRequest.model_validate(body))
        else:
            answer = complete(self._session, ChatRequest.model_validate(body))
        answered: dict[str, Any] = json.loads(json.dumps(await self._answer_to(answer)))
        return answered

    async def _answer_to[T](self, question: Awaitable[T]) -> T:
        task = asyncio.ensure_future(question)
        self._left -= 1
        if self._left == 0 and not self._answered:
            await asyncio.sleep(0)
            task.cancel()
        answer = await asyncio.wait([task])
        if self._left == 0:
            raise Lost
        return answer[0].pop().result()


Request = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Agent = Callable[[Policy, History, Request], Awaitable[Trajectory]]


def worth(tokens: Sequence[int]) -> float:
    return sum(tokens) % 8 / 8


async def tokens_only(policy: Policy, history: History, request: Request) -> Trajectory:
    turns = list(history.turns)
    context = turns[-1].whole + await policy.encode("7" * (len(turns) % 3)) if turns else PROMPT
    while turn := await policy.generate(context):
        turns.append(turn)
        context = turn.whole + await policy.encode("7" * (len(turns) % 3))
    return Trajectory(turns[-1].whole, rewards=[worth(t.tokens) for t in turns], metrics={"turns": len(turns)})


async def messages_only(policy: Policy, history: History, request: Request) -> Trajectory:
    messages: list[Any] = history.messages or [{"role": "user", "content": "1+2="}]
    turns = list(history.turns)
    while True:
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": str(len(turns))})
        turn = await policy.generate(messages)
        if turn is None:
            return await policy.trajectory(rewards=[worth(t.tokens) for t in turns])
        turns.append(turn)
        messages.append(turn.message)


async def replies(policy: Policy, history: History, request: Request) -> Trajectory:
    turn = history.last or await policy.generate(PROMPT)
    while turn:
        last = turn
        turn = await policy.generate(
            turn.whole + await policy.reply(turn.whole, [{"role": "user", "content": turn.text[:2]}])
        )
    return Trajectory(last.whole)


ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


async def with_tools(policy: Policy, history: History, request: Request) -> Trajectory:
    turn = history.last or await policy.generate(PROMPT, tools=[ADD])
    while turn:
        last = turn
        (call,) = turn.tool_calls
        said = {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
        turn = await policy.generate(turn.whole + await policy.reply(turn.whole, [said]), tools=[ADD])
    return Trajectory(last.whole)


async def through_a_client(policy: Policy, history: History, request: Request) -> Trajectory:
    messages: list[Any] = history.messages or [{"role": "user", "content": "1+2="}]
    while True:
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": messages[-1]["content"][:3]})
        (choice,) = (await request({"messages": messages}))["choices"]
        if choice["finish_reason"] == "length":
            return await policy.trajectory()
        messages.append(choice["message"])


async def through_responses(policy: Policy, history: History, request: Request) -> Trajectory:
    items: list[Any] = [{"role": m["role"], "content": m["content"]} for m in history.messages]
    items = items or [{"role": "user", "content": "1+2="}]
    while True:
        if items[-1]["role"] == "assistant":
            items.append({"role": "user", "content": str(len(items) // 2)})
        response = await request({"input": items})
        if response["status"] == "incomplete":
            return await policy.trajectory()
        (said,) = (item for item in response["output"] if item["type"] == "message")
        items.append({"role": "assistant", "content": said["content"][0]["text"]})


async def with_branches(policy: Policy, history: History, request: Request) -> Trajectory:
    """Goes back to the prompt after every second turn."""
    turns = list(history.turns)
    while True:
        context = turns[-1].whole if len(turns) % 2 else [*PROMPT, *await policy.encode("9" * len(turns))]
        turn = await policy.generate(context)
        if turn is None:
            first, *others = reversed([t.whole for t in turns])
            return Trajectory(first, branches=others)
        turns.append(turn)


async def refused_at_times(policy: Policy, history: History, request: Request) -> Trajectory:
    """Asks for something that is refused after every second turn, again where it continues there."""
    turns, context = list(history.turns), history.last.whole if history.last else list(PROMPT)
    while True:
        if len(turns) % 2:
            with suppress(PolicyError):
                await policy.generate(context, stop=REFUSED)
        turn = await policy.generate(context)
        if turn is None:
            return Trajectory(context)
        turns.append(turn)
        context = turn.whole


def of_the_page() -> Agent:
    """The agent that docs/agents.md shows."""
    page = (Path(__file__).parents[3] / "docs/agents.md").read_text()
    code = next(block for block in page.split("```") if block.startswith("python") and ", history):" in block)

    async def answer_of(turn: Turn) -> dict[str, str]:
        return {"role": "user", "content": turn.text[:3]}

    known: dict[str, Any] = {"is_done": lambda turn: False, "answer_of": answer_of}
    exec(code.removeprefix("python"), known)
    return lambda policy, history, request: known["rollout"](None, policy, {"prompt": "1+2="}, history)


AGENTS: list[Agent] = [
    tokens_only,
    messages_only,
    replies,
    with_tools,
    through_a_client,
    through_responses,
    with_branches,
    of_the_page(),
]


async def made(agent: Agent, losses: Sequence[tuple[int, bool]], max_tokens: int = 4096) -> tuple[Session, Rollout]:
    """The session in which it ended, and the trajectory."""
    session = session_of(max_tokens)
    for lost_in, answered in losses:
        try:
            trajectory = await Process(session, lost_in, answered).run(agent)
        except Lost:
            session = session.continued()
        else:
            break
    else:
        trajectory = await Process(session, 0, True).run(agent)
    rollout = session.rollout([trajectory.tokens, *trajectory.branches], trajectory.rewards)
    assert rollout
    return session, rollout


def fields_of(rollout: Rollout) -> list[Any]:
    """All that is trained on."""
    rows = [rollout.segments, *rollout.branches]
    said = [
        [
            (
                s.source,
                s.tokens.tolist(),
                None if s.log_probs is None else s.log_probs.tolist(),
                s.policy_step,
                s.reward,
            )
            for s in row
        ]
        for row in rows
    ]
    return [said, rollout.truncated, rollout.last_turn.tolist(), rollout.turns, rollout.left_out, rollout.reward]
