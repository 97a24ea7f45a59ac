"""What an agent's process and the driver send each other: of a context that continues the last turn, only what is new."""

import json
import pickle
from typing import Any

import numpy as np

from rljob_api.families import ParserNames
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Policy, Turn
from rljob_trainer.agents.conversations import ResponseParser
from rljob_trainer.agents.session import Response, Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest
from rljob_trainer.wire.trajectory import Ints, Segment
from trainer.agents.test_tools import END, words

PROMPT = (1, 2, 3)


class Between:
    """A policy, and the bytes of what is sent in both directions."""

    def __init__(self, turns: int) -> None:
        spec = AgentSpec.model_validate(
            {"python": {"path": "/a"}, "maxTurns": turns, "maxTokens": 10**6, "timeoutSeconds": 5}
        )
        prompt, parser = Prompt(0, PROMPT, "1+2=", "3", "sum"), ResponseParser(ParserNames("", ""), {}, nobody)
        self.session = Session(spec, prompt, Sampling(), words(), ChatTemplate(), sample, parser)
        self.policy, self.up, self.down = Policy(self._ask), 0, 0

    async def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        asked = json.dumps(arguments)
        answer = pickle.dumps(await self.session.answer(method, json.loads(asked)))
        self.up, self.down = self.up + len(asked), self.down + len(answer)
        return pickle.loads(answer)


async def nobody(request: ParseRequest) -> Parsed:
    raise AssertionError("there is nothing to read: these agents have no tools")


async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
    tokens = np.array(words().encode("3" * 20 + END, add_special_tokens=False), np.int32)
    return (Segment(tokens, "policy", np.zeros(len(tokens), np.float32), turn),), False


async def continued(turns: int) -> tuple[Between, Turn]:
    """Each turn continues the one before it."""
    between = Between(turns)
    context = list(PROMPT)
    while turn := await between.policy.generate(context):
        last, context = turn, turn.whole + await between.policy.encode("9" * 20)
    return between, last


async def conversed(turns: int) -> tuple[Between, Turn]:
    """The same in messages."""
    between = Between(turns)
    messages: list[dict[str, str]] = [{"role": "user", "content": "1+2="}]
    while turn := await between.policy.generate(messages):
        last = turn
        messages += [turn.message, {"role": "user", "content": "9" * 20}]
    return between, last


async def test_a_hundred_turns_send_twice_as_much_as_fifty() -> None:
    """Whole contexts would be four times as much."""
    for play in (continued, conversed):
        (half, _), (whole, last) = await play(50), await play(100)
        assert 1.9 * half.up < whole.up < 2.1 * half.up and 1.9 * half.down < whole.down < 2.1 * half.down
        assert whole.up < 100 * 200 and whole.down < 100 * 1500, (
            "200 bytes for a turn of 40 new tokens, 1500 with its numbers"
        )
        rollout = whole.session.rollout([last.whole])
        assert rollout and (rollout.turns, rollout.left_out) == (100, 0)


async def test_a_context_that_was_rewritten_is_sent_whole_and_continues_what_it_says() -> None:
    between = Between(9)
    first = await between.policy.generate(PROMPT)
    assert first
    second = await between.policy.generate([*first.whole, 9])
    rewritten = await between.policy.generate([*PROMPT, 8])
    again = await between.policy.generate([*first.whole, 7])
    assert second and rewritten and again
    contexts = [answered.recorded.context.tolist() for _, answered in between.session._answers]
    assert contexts == [list(PROMPT), [*first.whole, 9], [*PROMPT, 8], [*first.whole, 7]]
    assert [turn.context for turn in (first, second, rewritten, again)] == contexts


async def test_messages_that_were_changed_are_a_conversation_of_their_own() -> None:
    between = Between(9)
    first = await between.policy.generate([{"role": "user", "content": "1"}])
    assert first
    second = await between.policy.generate(
        [{"role": "user", "content": "2"}, first.message, {"role": "user", "content": "3"}]
    )
    third = await between.policy.generate(
        [{"role": "user", "content": "1"}, first.message, {"role": "user", "content": "3"}]
    )
    assert second and third
    assert third.context[: len(first.whole)] == first.whole and second.context[: len(first.whole)] != first.whole
