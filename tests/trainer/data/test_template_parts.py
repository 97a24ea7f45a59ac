"""Chat templates that leave out what they do not know: such rows are refused, in every task."""

from dataclasses import replace

import pytest

from rljob_api.spec.model import ChatTemplate, DataSpec
from rljob_trainer.data.chat import encode_prompt
from rljob_trainer.data.encoding import encode
from rljob_trainer.data.files import Place
from rljob_trainer.data.formats import Chat
from rljob_trainer.data.rows import Row
from rljob_trainer.data.template_parts import UNSAID
from rljob_trainer.data.tokenizer import ToolTokenizer
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import ENDS, QWEN, tokenizer
from trainer.data.test_loading import load

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


THOUGHT = "one and one"
TWICE = ANSWER | {"reasoning": THOUGHT, "reasoning_content": THOUGHT}
INSIDE = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n2", "reasoning_content": f"{THOUGHT}\n"}
SETTINGS = ANSWER | {"thinking": True, "reasoning": {"effort": "high"}}
LOUD = BARE.replace("m.content", "m.content | upper")
SILENT_BEFORE_CALLS = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{{ m.tool_calls | string }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""In the style of Llama 3.1's."""
USUAL = {
    "a thought under two keys, of which the template reads one": (
        KNOWING.replace("reasoning_content", "reasoning"),
        (USER, TWICE),
    ),
    "a thought that the content has": (BARE, (USER, INSIDE)),
    "settings of a thought": (BARE, (USER, SETTINGS)),
    "a template that writes in capitals": (LOUD, (USER, ANSWER)),
    "a content before a call": (SILENT_BEFORE_CALLS, (USER, CALLING | {"content": "I add."}, RESULT, ANSWER)),
}


@pytest.mark.parametrize(("template", "messages"), USUAL.values(), ids=USUAL)
def test_usual_rows_are_taken(template, messages):
    assert len(encode(Chat(messages, None, 0), PLACE, tokenizer(template))[0])


def test_what_the_assistant_says_before_a_call_and_the_template_leaves_out_is_said_of_the_rows(tmp_path):
    row = {"messages": [USER, CALLING | {"content": "I add."}]}
    notes = {
        template: load(tmp_path, [row], tok=tokenizer(template), maxTokens=999).notes
        for template in (SILENT_BEFORE_CALLS, QWEN)
    }
    assert [*notes[SILENT_BEFORE_CALLS]] == [UNSAID] and not notes[QWEN]


def test_a_thought_under_two_keys_of_which_the_template_reads_none_is_refused():
    with pytest.raises(ConfigurationError, match="'reasoning_content' of message 2"):
        encode(Chat((USER, TWICE), None, 0), PLACE, tokenizer(BARE))


def test_earlier_thoughts_and_what_is_empty_are_not_asked_for():
    silent = {"role": "assistant", "content": "", "reasoning_content": "  "}
    said = (SYSTEM | {"content": ""}, USER, THINKING, USER, silent | {"content": "2"})
    assert len(encode(Chat(said, None, 0), PLACE, tokenizer(BARE))[0])
