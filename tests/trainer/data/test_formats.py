"""Rows in the formats that people bring."""

import json

import pytest

from rljob_api.spec.model import ChatTemplate, DataSpec
from rljob_trainer.data.files import Place
from rljob_trainer.data.formats import Chat, LeftOut, Texts, conversation, detect, pair
from rljob_trainer.failure import ConfigurationError

PLACE = Place("spec.data.train[0]", "a.jsonl", 7)
USER, ANSWER = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}
TURNS = [{"from": "human", "value": "1+1="}, {"from": "gpt", "value": "2"}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
SCHEMA = {"type": "function", "function": {"name": "add"}}


def read(row: dict, **fields) -> Chat | Texts:
    data = DataSpec(train=["/x"], **fields)
    return conversation(row, PLACE, data, detect(row, PLACE, data, paired=False))


def both(row: dict, **fields):
    data = DataSpec(train=["/x"], **fields)
    return pair(row, PLACE, data, detect(row, PLACE, data, paired=True))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"messages": json.dumps([USER, ANSWER])},
        {"messages": [USER | {"tool_calls": None, "name": None}, ANSWER | {"tool_calls": None}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]},
                ANSWER,
            ]
        },
        {"conversations": TURNS},
        {"conversations": [USER, ANSWER]},
        {"messages": TURNS},
        {"instruction": "1+1=", "input": "", "output": "2"},
        {"prompt": [USER], "response": "2"},
        {"prompt": [USER], "response": [ANSWER]},
        {"messages": [USER, ANSWER, {"role": "user", "content": "thanks"}]},
    ],
)
def test_every_format_says_the_same_conversation(row):
    assert read(row) == Chat((USER, ANSWER), None, 0)


def test_alpaca_rows_have_input_history_and_system():
    row = {"instruction": "add", "input": "1 1", "output": "2", "history": [["hi", "hello"]], "system": "be kind"}
    said = [(m["role"], m["content"]) for m in read(row).messages]
    assert said == [
        ("system", "be kind"),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "add\n1 1"),
        ("assistant", "2"),
    ]


def test_sharegpt_rows_have_a_system_prompt_tools_and_their_calls():
    turns = [
        {"from": "human", "value": "1+1="},
        {"from": "function_call", "value": json.dumps({"name": "add", "arguments": {"x": 1}})},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "It is 2."},
    ]
    chat = read({"conversations": turns, "system": "be kind", "tools": json.dumps([SCHEMA])})
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat.messages[2]["tool_calls"] == [CALL] and chat.tools == [SCHEMA]


def test_calls_of_tools_reach_the_template_with_objects_as_arguments():
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    chat = read({"messages": [USER, message, {"role": "tool", "content": "2", "tool_call_id": "1"}, ANSWER]})
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"} | CALL]}
    assert chat.messages[2]["tool_call_id"] == "1"


def test_texts_stay_texts_unless_the_chat_template_is_wanted():
    row = {"prompt": "1+1=", "response": "2"}
    assert read(row) == Texts("1+1=", "2")
    assert read(row, chat_template=ChatTemplate(texts=True)) == Chat((USER, ANSWER), None, 0)
    assert read({"question": "1+1=", "a": {"b": "2"}}, prompt_key="question", response_key="a.b") == Texts("1+1=", "2")


BE_KIND = {"role": "system", "content": "be kind"}
KIND = ChatTemplate(system_prompt="be kind", arguments={"enable_thinking": False})


def test_a_system_prompt_comes_before_conversations_that_have_none_and_the_same_turns_are_learnt():
    thoughts = {"enable_thinking": False}
    assert read({"messages": [USER, ANSWER]}, chat_template=KIND) == Chat((BE_KIND, USER, ANSWER), None, 0, thoughts)
    twice = read({"messages": [USER, ANSWER, USER, ANSWER]}, chat_template=KIND, loss_on="lastAssistant")
    assert twice == Chat((BE_KIND, USER, ANSWER, USER, ANSWER), None, 4, thoughts)
    for role in ("system", "developer"):
        own = {"role": role, "content": "be brief"}
        assert read({"messages": [own, USER, ANSWER]}, chat_template=KIND).messages == (own, USER, ANSWER)
    pair_of = both({"prompt": [USER], "chosen": "2", "rejected": "3"}, chat_template=KIND)
    assert pair_of == (
        Chat((BE_KIND, USER, ANSWER), None, 2, thoughts),
        Chat((BE_KIND, USER, WRONG), None, 2, thoughts),
    )


def test_a_text_has_no_place_for_a_system_prompt():
    with pytest.raises(ConfigurationError, match="no place for spec.data.chatTemplate.systemPrompt; set .*texts: true"):
        read({"prompt": "1+1=", "response": "2"}, chat_template=KIND)


def test_the_loss_may_be_on_the_last_turn_only():
    assert read({"messages": [USER, ANSWER, USER, ANSWER]}, loss_on="lastAssistant").learn_from == 3
    assert read({"messages": [USER, ANSWER | {"content": ""}, USER, ANSWER]}, loss_on="lastAssistant").learn_from == 3


WRONG = {"role": "assistant", "content": "3"}


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"prompt": "1+1=", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"prompt": "1+1=", "chosen": [ANSWER], "rejected": [WRONG]},
        {"prompt": [USER], "chosen": "2", "rejected": "3"},
        {"messages": [USER], "chosen": ANSWER, "rejected": WRONG},
        {"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": {"from": "gpt", "value": "3"}},
        {"instruction": "1+1=", "input": "", "chosen": "2", "rejected": "3"},
    ],
)
def test_every_format_of_pairs_says_the_same_two_answers_to_one_prompt(row):
    assert both(row) == (Chat((USER, ANSWER), None, 1), Chat((USER, WRONG), None, 1))


def test_pairs_of_texts_stay_texts():
    assert both({"prompt": "1+1=", "chosen": "2", "rejected": "3"}) == (Texts("1+1=", "2"), Texts("1+1=", "3"))


def test_of_a_pair_only_what_differs_is_learnt():
    chosen, rejected = both({"chosen": [USER, ANSWER, USER, ANSWER], "rejected": [USER, ANSWER, USER, WRONG]})
    assert chosen.learn_from == rejected.learn_from == 3


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("no_assistant", {"messages": [USER]}),
        ("no_assistant", {"messages": []}),
        ("empty", {"messages": [USER, ANSWER | {"content": " \n"}]}),
        ("empty", {"instruction": "1+1=", "output": ""}),
        ("empty", {"instruction": "", "output": "2"}),
        ("empty", {"prompt": "1+1=", "response": None}),
        ("empty", {"prompt": " ", "response": "2"}),
    ],
)
def test_a_row_without_anything_to_learn_is_left_out_for_a_reason(reason, row):
    with pytest.raises(LeftOut) as caught:
        read(row)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("equal_pair", {"prompt": "1+1=", "chosen": "2", "rejected": "2"}),
        ("equal_pair", {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}),
        ("empty", {"prompt": "1+1=", "chosen": "", "rejected": "2"}),
        ("empty", {"prompt": "1+1=", "chosen": "2", "rejected": None}),
        ("empty", {"prompt": [USER], "chosen": [], "rejected": "2"}),
        ("empty", {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER | {"content": ""}]}),
        ("no_assistant", {"chosen": [USER, ANSWER, USER], "rejected": [USER, WRONG]}),
    ],
)
def test_a_pair_without_a_preference_is_left_out_for_a_reason(reason, row):
    with pytest.raises(LeftOut) as caught:
        both(row)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"messages": [USER, ANSWER | {"role": "bot"}]}, "unknown role 'bot'; use one of system"),
        ({"conversations": [TURNS[0], TURNS[1] | {"from": "bot"}]}, "unknown role 'bot'; use one of human"),
        ({"messages": [USER, "2"]}, "not a message"),
        ({"messages": [USER, {"role": "assistant", "content": 2}]}, "content 2, which is not a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]}, "which is not a text"),
        ({"messages": "1+1=2"}, "not a list of messages"),
        ({"messages": [USER, ANSWER], "tools": "add"}, "'tools' holds 'add', which is not a list of functions"),
        ({"instruction": "x", "output": "y", "history": ["x"]}, "'history' holds 'x', which is not a pair"),
        ({"instruction": 4, "output": "y"}, "'instruction' holds 4, which is not a text"),
        ({"instruction": "x", "output": 3}, "'output' holds 3, which is neither a text nor a list.*write it as a text"),
        ({"prompt": 4, "response": "y"}, "'prompt' holds 4, which is neither a text nor a list.*write it as a text"),
        ({"question": "x", "answer": "y"}, "columns are question, answer.*'messages' or 'conversations'.*keys under"),
    ],
)
def test_a_row_of_no_known_shape_is_refused_with_file_and_row(row, complaint):
    with pytest.raises(ConfigurationError, match=f"(?s)a.jsonl row 7: .*{complaint}"):
        read(row)


LONG = "How much is one and one?"


def test_an_answer_may_say_a_short_prompt_again_and_one_of_two_a_long_one():
    assert both({"prompt": "1+1=", "chosen": "1+1=2", "rejected": "1+1=3"})
    assert both({"prompt": LONG, "chosen": f"{LONG} 2", "rejected": "3"})


def test_a_later_row_without_the_column_of_its_format_ends_the_job():
    with pytest.raises(ConfigurationError, match="row 7: has no column 'instruction'; its columns are output"):
        conversation({"output": "2"}, PLACE, DataSpec(train=["/a.jsonl"]), "alpaca")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"chosen": "2", "rejected": "3"}, "has no column 'prompt' that 'chosen' would answer"),
        ({"chosen": [USER, ANSWER], "rejected": [WRONG]}, "has no column 'prompt' that 'rejected' would"),
        ({"chosen": [USER, ANSWER], "rejected": [{"role": "user", "content": "?"}, WRONG]}, "not two answers to one"),
        ({"chosen": [USER, ANSWER, USER, ANSWER], "rejected": [USER, ANSWER]}, "not two answers to one prompt"),
        ({"prompt": "1", "chosen": "2", "rejected": [WRONG]}, "is a text and the other holds messages"),
        ({"prompt": "1", "chosen": "2"}, "columns are prompt, chosen, which is none"),
        ({"prompt": LONG, "chosen": f"{LONG} 2", "rejected": f" {LONG} 3"}, "begin with the prompt, which would stand"),
        ({"messages": [USER], "chosen": "2"}, "has no column 'rejected'"),
    ],
)
def test_a_pair_of_no_known_shape_is_refused_with_file_and_row(row, complaint):
    with pytest.raises(ConfigurationError, match=f"a.jsonl row 7: .*{complaint}"):
        both(row)


CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
FUNCTION_CALL = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"x": 1}'}}


def test_a_call_in_openais_older_form_is_a_call():
    assert read({"messages": [USER, FUNCTION_CALL]}).messages == (USER, CALLED)


@pytest.mark.parametrize(
    "call", [None, "none", "auto", {}, {"name": None, "arguments": None}, {"name": "", "arguments": ""}], ids=str
)
def test_a_message_whose_older_call_names_no_function_calls_none(call):
    assert read({"messages": [USER | {"function_call": call}, ANSWER | {"function_call": call}]}).messages == (
        USER,
        ANSWER,
    )


def test_only_the_assistant_calls_in_openais_older_form():
    asked = USER | {"function_call": {"name": "add"}}
    assert read({"messages": [asked, FUNCTION_CALL]}).messages == (USER, CALLED)


@pytest.mark.parametrize("text", [True, False], ids=["JSON text", "an object"])
def test_nulls_in_json_text_are_meant_and_those_in_objects_are_arrows(text):
    given, schema = {"x": 1, "y": None}, [{"name": "add", "default": None}]
    call = {"name": "add", "arguments": json.dumps(given) if text else given}
    row = {
        "messages": [USER, {"role": "assistant", "tool_calls": [call]}],
        "tools": json.dumps(schema) if text else schema,
    }
    chat = read(row)
    assert chat.messages[1]["tool_calls"][0]["function"]["arguments"] == (given if text else {"x": 1})
    assert chat.tools == (schema if text else [{"name": "add"}])


@pytest.mark.parametrize(
    ("row", "fields", "form"),
    [
        ({"messages": [USER, ANSWER], "q": "1", "a": "2"}, {"prompt_key": "q", "response_key": "a"}, "columns"),
        ({"instruction": "i", "output": "o", "q": "1", "a": "2"}, {"prompt_key": "q", "response_key": "a"}, "columns"),
        ({"messages": [USER, ANSWER], "prompt": "1", "a": "2"}, {"response_key": "a"}, "columns"),
        ({"messages": [USER, ANSWER], "prompt": "1", "response": "2"}, {}, "messages"),
        ({"messages": [USER, ANSWER], "response": "a"}, {"prompt_key": "messages"}, "messages"),
        ({"conversations": TURNS, "a": "2"}, {"prompt_key": "conversations", "response_key": "a"}, "sharegpt"),
        ({"messages": [USER], "response": "2"}, {"prompt_key": "messages"}, "columns"),
        ({"messages": [USER, ANSWER], "prompt": "1"}, {"prompt_key": "q", "response_key": "a"}, "messages"),
        ({"messages": [USER, ANSWER], "q": "1"}, {"prompt_key": "q", "response_key": "a"}, "messages"),
        (
            {"messages": [], "chat": [USER, ANSWER], "q": "1", "a": "2"},
            {"messages_key": "chat", "prompt_key": "q"},
            "messages",
        ),
    ],
)
def test_columns_that_the_spec_names_count_whatever_else_a_row_has(row, fields, form):
    assert detect(row, PLACE, DataSpec(train=["/x"], **fields), paired=False) == form


@pytest.mark.parametrize("fields", [{}, {"prompt_key": "q"}])
def test_the_prompt_of_a_pair_that_the_spec_names_counts(fields):
    row = {"messages": [USER], "q": "3+3=", "chosen": "2", "rejected": "3"}
    chosen, _ = both(row, chat_template=ChatTemplate(texts=True), **fields)
    assert chosen.messages[0]["content"] == ("3+3=" if fields else "1+1=")


@pytest.mark.parametrize(
    "row",
    [{"messages": [USER, ANSWER]}, {"prompt": [USER, ANSWER]}, {"conversations": TURNS}],
    ids=lambda row: next(iter(row)),
)
def test_an_answer_behind_an_answer_is_refused(row):
    with pytest.raises(ConfigurationError, match=r"row 7.*end with the assistant's turn"):
        both(row | {"chosen": "2", "rejected": "3"})
    if "prompt" in row:
        with pytest.raises(ConfigurationError, match="end with the assistant's turn"):
            read(row | {"response": "2"})
