"""Loss masks of conversations: the assistant's text with its end of turn, and nothing of anybody else's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rljob_trainer.data.chat import learnt_tokens
from rljob_trainer.data.encoding import encode
from rljob_trainer.data.files import Place
from rljob_trainer.data.formats import Chat
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import ENDS, LLAMA3, MARKED, MISTRAL_LAST, QWEN, QWEN3, QWEN3_ARGUMENT, tokenizer

PLACE = Place("spec.data.train[0]", "a.jsonl", 7)
GAPS = " \n"
USER, SYSTEM, TOOL, ASSISTANT = "абв", "где", "жзи", "xyzш"


def text(letters: str):
    """Begins and ends with white space often, which templates trim and tokenizers merge with what is around it."""
    return st.text(letters + GAPS, min_size=1, max_size=12).filter(str.strip)


def said(role: str, content: str) -> dict:
    return {"role": role, "content": content}


@st.composite
def conversations(draw):
    turns = draw(st.lists(st.tuples(text(USER), text(ASSISTANT)), min_size=1, max_size=4))
    system = [said("system", draw(text(SYSTEM)))] if draw(st.booleans()) else []
    return (*system, *(said(*m) for user, model in turns for m in (("user", user), ("assistant", model))))


def learnt_runs(chat: Chat, tok) -> list[str]:
    """The text of each run of learnt tokens."""
    tokens, learnt = encode(chat, PLACE, tok)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], learnt.astype(int), [0]))))
    return [tok.decode(tokens[a:b], skip_special_tokens=False) for a, b in edges.reshape(-1, 2)]


@pytest.mark.parametrize("name", ENDS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_loss_is_on_the_assistants_words_and_their_end_of_turn_and_on_nothing_else(name, data):
    template, end = ENDS[name]
    messages = data.draw(conversations())
    start = data.draw(st.sampled_from([0, len(messages) - 1]))
    tok = tokenizer(template, end)
    found = learnt_runs(Chat(messages, None, start), tok)
    right = [m["content"] for m in messages[start:] if m["role"] == "assistant"]
    assert not set("".join(found)) & set(USER + SYSTEM + TOOL)
    assert [run.replace("<think>\n\n</think>\n\n", "").removesuffix(end).strip() for run in found] == [
        r.strip() for r in right
    ]
    assert all(run.endswith(end) for run in found)


CALLS = [{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": USER}}]


@settings(max_examples=40)
@given(user=text(USER), results=st.lists(text(TOOL), min_size=1, max_size=3), answer=text(ASSISTANT))
def test_calls_of_tools_are_learnt_and_what_the_tools_answer_is_not(user, results, answer):
    messages = (
        said("user", user),
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        *(said("tool", result) for result in results),
        said("assistant", answer),
    )
    call, last = learnt_runs(Chat(messages, TOOLS, 0), tokenizer(QWEN, "<|im_end|>"))
    assert call.strip() == '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>'
    assert last.strip() == f"{answer.lstrip()}<|im_end|>"


TWO = (said("system", "г"), said("user", "а"), said("assistant", "x"), said("user", "б"), said("assistant", "y"))


def test_a_template_that_writes_earlier_turns_otherwise_later_is_refused_with_what_to_do():
    tok = tokenizer(MISTRAL_LAST)
    with pytest.raises(ConfigurationError, match="no {% generation %} marks.*lossOn: lastAssistant") as caught:
        encode(Chat(TWO, None, 0), PLACE, tok)
    assert (caught.value.field, caught.value.value) == ("spec.data.train[0]", "a.jsonl row 7")
    assert learnt_runs(Chat(TWO, None, 4), tok)[0].strip() == "y</s>"


def test_thoughts_that_a_template_drops_from_earlier_turns_are_no_reason_to_guess():
    thought = (said("user", "а"), said("assistant", "<think>\nz\n</think>\n\nx"), *TWO[3:])
    with pytest.raises(ConfigurationError, match="writes the beginning up to message 2 otherwise"):
        encode(Chat(thought, None, 0), PLACE, tokenizer(QWEN3, "<|im_end|>"))
    (learnt,) = learnt_runs(Chat(thought[:2], None, 0), tokenizer(QWEN3, "<|im_end|>"))
    assert learnt.strip() == "<think>\nz\n</think>\n\nx<|im_end|>"


@settings(max_examples=40)
@given(data=st.data())
def test_what_an_argument_lets_the_template_write_in_front_of_the_answer_is_not_learnt(data):
    """Qwen3's enable_thinking: false ends the header with an empty thought, which nobody asks the model to write."""
    messages, tok = data.draw(conversations()), tokenizer(QWEN3_ARGUMENT, "<|im_end|>")
    last, answer = len(messages) - 1, messages[-1]["content"]
    (silent,) = learnt_runs(Chat(messages, None, last, {"enable_thinking": False}), tok)
    (thinking,) = learnt_runs(Chat(messages, None, last, {"enable_thinking": True}), tok)
    assert silent == answer.lstrip("\n") + "<|im_end|>"
    assert thinking == "<think>\n\n</think>\n\n" + silent


def test_earlier_turns_that_an_argument_writes_otherwise_are_refused():
    with pytest.raises(ConfigurationError, match="lossOn: lastAssistant"):
        encode(Chat(TWO, None, 0, {"enable_thinking": False}), PLACE, tokenizer(QWEN3_ARGUMENT, "<|im_end|>"))


def test_arguments_reach_a_template_that_marks_the_assistants_text():
    styled = "{{- style + ';' }}" + MARKED
    assert QWEN3_ARGUMENT != QWEN3
    runs = learnt_runs(Chat(TWO, None, 0, {"style": "а"}), tokenizer(styled))
    assert runs == learnt_runs(Chat(TWO, None, 0), tokenizer(MARKED))
    with pytest.raises(ConfigurationError, match="refuses the row: UndefinedError: 'style' is undefined"):
        encode(Chat(TWO, None, 0), PLACE, tokenizer(styled))


def test_marks_inside_of_a_macro_which_transformers_misplaces_are_refused():
    macro = "{%- macro say(m) %}{{ m.role + ':' }}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    other = "{% if m.role == 'assistant' %}{{ say(m) }}{% else %}{{ m.content }}{% endif %}"
    body = f"{{%- for m in messages %}}{other}{{% endfor %}}"
    with pytest.raises(ConfigurationError, match="outside of macros"):
        encode(Chat(TWO[1:], None, 0), PLACE, tokenizer(macro + body))


def test_marks_that_enclose_the_users_text_are_refused():
    with pytest.raises(ConfigurationError, match="do not enclose the assistant's text"):
        encode(Chat(TWO, None, 0), PLACE, tokenizer(MARKED.replace("== 'assistant'", "!= 'system'")))


def test_a_conversation_that_begins_with_the_assistant_is_refused():
    with pytest.raises(ConfigurationError, match="begins with the assistant's turn"):
        encode(Chat(TWO[2:], None, 0), PLACE, tokenizer(LLAMA3, "<|eot_id|>"))


def test_a_token_across_the_seam_counts_only_if_white_space_of_the_header_is_all_that_it_has_more():
    offsets = [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert learnt_tokens("abc  defghij", offsets, [(5, 9)]).tolist() == [False, True, True, False]
    assert learnt_tokens("abc: defghij", offsets, [(5, 9)]).tolist() == [False, False, True, False]
    assert learnt_tokens("abc  def  ij", offsets, [(5, 8)]).tolist() == [False, True, False, False]


@pytest.mark.parametrize("trim", [False, True])
def test_white_space_within_an_answer_is_learnt_whatever_the_tokenizer_says_of_its_place(trim):
    made = Tokenizer(models.WordLevel({chr(c): c for c in range(33, 127)} | {"Ġ": 0, "Ċ": 1}, unk_token="?"))
    one_by_one = [pre_tokenizers.ByteLevel(False, use_regex=False), pre_tokenizers.Split("", "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence(one_by_one)
    made.post_processor = processors.ByteLevel(trim_offsets=trim)
    template = "{% for m in messages %}{{ m.role + ':' + m.content + '~' }}{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    tok = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="~", chat_template=template)
    tokens, learnt = encode(Chat((said("user", "a\n"), said("assistant", "b \nc")), None, 0), PLACE, tok)
    assert tokens[learnt].tolist() == [ord("b"), 0, 1, ord("c"), ord("~")]
