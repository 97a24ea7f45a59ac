"""Which messages a request's items are, and which turns of the policy's a conversation continues."""

import pytest

from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Turn, message_of
from rljob_trainer.agents.conversations import Conversations, written
from rljob_trainer.agents.responses import ResponsesRequest, messages_of
from trainer.agents.test_tools import END, words
from trainer.data.templates import QWEN, tokenizer

USER = {"role": "user", "content": "q"}


def said(text: str) -> dict:
    return {"type": "message", "role": "assistant", "content": text}


def thought(text: str | None) -> dict:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CALLS = {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([said("A"), said("B")], [{"content": "A"}, {"content": "B"}]),
        ([said(""), said("B")], [{"content": ""}, {"content": "B"}]),
        ([said("A"), thought("r"), said("B")], [{"content": "A"}, {"reasoning": "r", "content": "B"}]),
        ([CALLED, said("B")], [CALLS, {"content": "B"}]),
        ([CALLED, thought("r"), CALLED], [CALLS, {"reasoning": "r", **CALLS}]),
        ([thought("r"), thought("s"), said("A"), CALLED], [{"reasoning": "rs", "content": "A", **CALLS}]),
        ([thought(None), said("A")], [{"reasoning": "", "content": "A"}]),
    ],
)
def test_every_item_of_the_assistant_s_is_part_of_a_message(items: list[dict], expected: list[dict]) -> None:
    found = messages_of(ResponsesRequest(input=[USER, *items]).input)
    assert found == [USER, *({"role": "assistant"} | message for message in expected)]


def test_of_two_answers_that_differ_in_reasoning_that_goes_on_whose_reasoning_is_repeated() -> None:
    found = Conversations(words(), ChatTemplate())
    begun = found.context([USER], [])
    tokens = {r: begun + words().encode(f"{r}</think>yes{END}", add_special_tokens=False) for r in ("one", "two")}
    for reasoning, whole in tokens.items():
        found.add([USER], {"role": "assistant", "content": "yes", "reasoning": reasoning}, whole)

    def continued(**reasoning: str) -> str:
        goes_on = [USER, {"role": "assistant", "content": "yes", **reasoning}, {"role": "user", "content": "and?"}]
        context = found.context(goes_on, [])
        (of,) = [r for r, whole in tokens.items() if context[: len(whole)] == whole]
        return of

    assert [continued(reasoning="one"), continued(reasoning_content="two"), continued()] == ["one", "two", "two"]


def test_a_turn_s_message_keeps_its_reasoning() -> None:
    turn = Turn([1], [2], [0.0], [0], "hm</think>3", "stop", "3", "hm", [])
    assert turn.message == {"role": "assistant", "content": "3", "reasoning": "hm"}
    assert message_of(None) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("template", [QWEN, QWEN.replace("'system'", "'developer'")], ids=["unnamed", "named"])
def test_what_a_developer_says_is_read_whether_or_not_the_template_names_the_role(template: str) -> None:
    text = written([{"role": "developer", "content": "BE TERSE"}, USER], tokenizer(template, END), ChatTemplate())
    assert text.lstrip().startswith("<|im_start|>system\nBE TERSE")
