"""Chat templates that leave out what they do not know: such rows are refused, in every task."""

from dataclasses import replace

import pytest

from rljob_api.spec.model import ChatTemplate, DataSpec
from rljob_trainer.data.chat import encode_prompt
from rljob_trainer.data.encoding import encode
from rljob_trainer.data.files import Place
from rljob_trainer.data.formats import Chat
from rljob_trainer.data.rows import Row
from rljob_trainer.data.tokenizer import ToolTokenizer
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import ENDS, QWEN, tokenizer

PLACE = Place("spec.data.train[0]", "a.jsonl", 7)
USER, ANSWER = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}
SYSTEM, DEVELOPER = {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be brief."}
RESULT = {"role": "tool", "content": "2"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
THINKING = {"role": "assistant", "content": "2", "reasoning_content": "one and one"}
SCHEMA = {"type": "function", "function": {"name": "add", "parameters": {}}}

BARE = """{%- for m in messages %}{% if m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Two roles and their contents."""
KNOWING = """{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.reasoning_content or '' }}{{ m.content }}{{ (m.tool_calls or '') | string }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Everything."""

LOST = {
    "a system prompt": ((SYSTEM, USER, ANSWER), None, "the content of message 1, of the role 'system'"),
    "a developer's text": ((DEVELOPER, USER, ANSWER), None, "the content of message 1, of the role 'developer'"),
    "a tool's result": ((USER, ANSWER, RESULT, ANSWER), None, "the content of message 3, of the role 'tool'"),
    "a call": ((USER, CALLING, RESULT, ANSWER), None, "the calls of message 2, of the role 'assistant'"),
    "functions": ((USER, ANSWER), [SCHEMA], "the functions that may be called (tools)"),
    "a thought": ((USER, THINKING), None, "'reasoning_content' of message 2, of the role 'assistant'"),
}


def prompt_of(messages, tools, template):
    row = Row(messages, "2", "", PLACE, tools=tools)
    return encode_prompt(row, DataSpec(train=["/x"]), tokenizer(template))


@pytest.mark.parametrize(("messages", "tools", "what"), LOST.values(), ids=LOST)
def test_a_conversation_of_which_the_template_leaves_out_a_part_is_refused(messages, tools, what):
    with pytest.raises(ConfigurationError, match=r"a\.jsonl row 7.*leaves out") as error:
        encode(Chat(messages, tools, 0), PLACE, tokenizer(BARE))
    assert what in str(error.value)


@pytest.mark.parametrize(("messages", "tools", "what"), LOST.values(), ids=LOST)
def test_a_template_that_writes_all_of_it_is_taken(messages, tools, what):
    text = tokenizer(KNOWING)
    assert len(encode(Chat(messages, tools, 0), PLACE, text)[0])


@pytest.mark.parametrize("name", ["a system prompt", "a tool's result", "functions"])
def test_a_prompt_of_which_the_template_leaves_out_a_part_is_refused(name):
    messages, tools, what = LOST[name]
    asked = (*(m for m in messages[:-1]), *(() if messages[-2] == USER else (USER,)))
    with pytest.raises(ConfigurationError) as error:
        prompt_of(asked, tools, BARE)
    assert what in str(error.value)
    assert prompt_of(asked, tools, KNOWING)


def test_a_system_prompt_of_the_spec_that_the_template_leaves_out_is_refused():
    spec = DataSpec(train=["/x"], chat_template=ChatTemplate(system_prompt="Be brief."))
    with pytest.raises(ConfigurationError, match="the role 'system'"):
        encode_prompt(Row((USER,), "2", "", PLACE), spec, tokenizer(BARE))


def test_functions_of_the_agent_that_the_template_leaves_out_are_refused():
    row, spec = Row((USER,), "2", "", PLACE), DataSpec(train=["/x"])
    with pytest.raises(ConfigurationError, match="functions that may be called"):
        encode_prompt(row, spec, ToolTokenizer(tokenizer(BARE), [SCHEMA]))
    assert encode_prompt(row, spec, ToolTokenizer(tokenizer(QWEN), [SCHEMA]))


@pytest.mark.parametrize(("template", "end"), ENDS.values(), ids=ENDS)
def test_templates_of_known_models_lose_nothing_of_plain_turns(template, end):
    for said in ((USER, ANSWER), (SYSTEM, USER, ANSWER), (SYSTEM, USER, ANSWER, USER, ANSWER)):
        chat = Chat(said, None, 0)
        if template.count("loop.index0 >= rest"):
            chat = replace(chat, learn_from=len(said) - 1)
        assert len(encode(chat, PLACE, tokenizer(template, end))[0])


def test_earlier_thoughts_and_what_is_empty_are_not_asked_for():
    silent = {"role": "assistant", "content": "", "reasoning_content": "  "}
    said = (SYSTEM | {"content": ""}, USER, THINKING, USER, silent | {"content": "2"})
    assert len(encode(Chat(said, None, 0), PLACE, tokenizer(BARE))[0])
