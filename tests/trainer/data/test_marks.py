"""Messages that say of themselves whether they are to be learnt."""

import math

import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.encoding import shorter
from rljob_trainer.data.files import Place
from rljob_trainer.data.formats import Chat, LeftOut, conversation, detect, pair
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import LLAMA3, MARKED, QWEN, tokenizer
from trainer.data.test_chat_masks import learnt_runs
from trainer.data.test_loading import load

PLACE = Place("spec.data.train[0]", "a.jsonl", 7)
USER = {"role": "user", "content": "а"}
NO = [
    *({key: 0} for key in ("weight", "loss_mask", "step_loss_mask", "loss_scale")),
    *({key: False} for key in ("train", "training", "trainable", "loss")),
    *({"masked": value} for value in (True, 1)),
    *({"weight": value} for value in (0.0, "0", False)),
    {"train": "False", "weight": 0},
]
YES = [{}, {"weight": 1}, {"weight": 1.0}, {"loss_mask": True}, {"train": "true"}, {"masked": False}, {"weight": None}]


def said(content: str, **mark) -> dict:
    return {"role": "assistant", "content": content, **mark}


def read(*messages: dict, **fields) -> Chat:
    data, row = DataSpec(train=["/x"], **fields), {"messages": list(messages)}
    found = conversation(row, PLACE, data, detect(row, PLACE, data, paired=False))
    assert isinstance(found, Chat)
    return found


@pytest.mark.parametrize(("template", "end"), [(QWEN, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (MARKED, "<|im_end|>")])
@pytest.mark.parametrize("mark", NO)
def test_a_turn_that_is_marked_as_not_to_be_learnt_is_context_and_the_template_sees_no_mark(template, end, mark):
    chat = read(USER, said("y", **mark), USER, said("x", weight=1), USER, said("z", **mark))
    assert [run.removesuffix(end).strip() for run in learnt_runs(chat, tokenizer(template, end))] == ["x"]
    assert chat.messages == (USER, said("y"), USER, said("x"))


@pytest.mark.parametrize("mark", YES)
def test_a_turn_that_is_marked_as_to_be_learnt_or_not_at_all_is_learnt(mark):
    assert read(USER, said("y", **mark)) == Chat((USER, said("y")), None, 0)


def test_turns_of_sharegpt_have_marks_too():
    turns = [("human", {}), ("gpt", {"weight": 0}), ("human", {}), ("gpt", {"loss": True})]
    data = DataSpec(train=["/x"])
    row = {"conversations": [{"from": who, "value": str(i)} | mark for i, (who, mark) in enumerate(turns)]}
    found = conversation(row, PLACE, data, "sharegpt")
    assert isinstance(found, Chat) and found.learnt == [3]


def test_a_row_whose_marks_leave_nothing_is_left_out_and_a_file_of_such_rows_ends_the_job(tmp_path):
    for messages, fields in (
        ((USER, said("y", weight=0)), {}),
        ((USER, said("x"), USER, said("y", train=False)), {"loss_on": "lastAssistant"}),
    ):
        with pytest.raises(LeftOut) as caught:
            read(*messages, **fields)
        assert caught.value.reason == "masked"
    with pytest.raises(ConfigurationError, match=r"nothing can be learnt from any of the 3 rows .*\(masked\)"):
        load(tmp_path, [{"messages": [USER, said("y", weight=0)]}] * 3)


def test_a_cut_conversation_ends_behind_a_turn_that_is_learnt():
    chat = read(USER, said("x"), USER, said("y", weight=0), USER, said("z"))
    assert [(len(c.messages), c.learnt) for c in shorter(chat)] == [(2, [1])]


def test_a_system_prompt_in_front_moves_no_mark():
    row = {"messages": [USER, said("y", weight=0), USER, said("x")], "system": "г"}
    found = conversation(row, PLACE, DataSpec(train=["/x"]), "messages")
    assert isinstance(found, Chat) and found.learnt == [4] and found.messages[0]["content"] == "г"


@pytest.mark.parametrize(
    ("messages", "fields", "complaint"),
    [
        ((USER, said("y", weight=0, train=True)), {}, "'train': True and 'weight': 0, which contradict each other"),
        ((USER, said("y", weight=0.5)), {}, "'weight': 0.5, which does not say"),
        ((USER, said("y", loss_mask=[0, 1])), {}, "'loss_mask': .0, 1., which does not say"),
        ((USER, said("y", train_detail=[{"train": False}])), {}, "'train_detail'"),
        ((USER, said("y", mask=1)), {}, "'mask': 1, which does not say"),
        ((USER, said("y", weight=0), USER, said("x")), {"loss_on": "all"}, "lossOn: all learns every token"),
        ((USER | {"train": True}, said("y"), USER, said("x", train=False)), {}, "marks message 1, of the user"),
    ],
)
def test_marks_that_contradict_or_are_neither_yes_nor_no_are_refused_with_file_and_row(messages, fields, complaint):
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        read(*messages, **fields)
    assert caught.value.value == "a.jsonl row 7"


def test_what_other_roles_say_by_such_keys_is_theirs():
    tool = {"role": "tool", "content": "2", "weight": 3.5, "loss": {"a": 1}}
    assert read(USER | {"weight": 0}, said("y"), tool, said("x")).learnt == [1, 3]


def test_marks_of_a_pair_are_refused_where_its_answers_differ_and_change_nothing_in_the_prompt():
    def both(first: dict, second: dict):
        row = {"chosen": [USER, said("x", **first), USER, said("y", **second)]}
        row["rejected"] = [USER, said("x", **first), USER, said("z")]
        return pair(row, PLACE, DataSpec(train=["/x"]), "columns")

    chosen, rejected = both({"weight": 0}, {"weight": 1})
    assert chosen == Chat((USER, said("x"), USER, said("y")), None, 3)
    assert rejected == Chat((USER, said("x"), USER, said("z")), None, 3)
    with pytest.raises(ConfigurationError, match="marks message 4 as not to be learnt"):
        both({}, {"weight": 0})


ROW = {"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}


def whole(marks: dict):
    return conversation(ROW | marks, PLACE, DataSpec(train=["/x"]), "messages")


LEARNT_ROWS = [
    *(
        {"weight": value}
        for value in (1, 1.0, "1", "1.0", None, math.nan, "nan", 65.2, 1200, -1, "light", "65 kg", [60.5])
    ),
    *({"loss_mask": value} for value in (1, True, [1, 1], [1.0, 1.0], [], "<mask>")),
    *({"masked": value} for value in (False, 0, "The [MASK] sat", ["The", "[MASK]"])),
    *({"label": value} for value in (True, False, 0, "bad")),
    *({"trainable": True}, {"sample_weight": 1.0}, {"loss_weight": math.nan}, {"loss": 0.3}, {"is_toxic": False}),
]
"""Usual columns: marks that say to learn, no value as pandas and Arrow write it, classes, and weights of things."""


@pytest.mark.parametrize("columns", LEARNT_ROWS, ids=str)
def test_a_row_that_is_marked_as_to_be_learnt_or_not_marked_is_learnt(columns):
    assert whole(columns).learnt == [1]


SILENT_ROWS = [
    *({"weight": value} for value in (0, 0.0, "0", "0.0", False)),
    *({"loss_mask": 0.0}, {"loss_mask": [0, 0]}, {"trainable": False}, {"masked": 1}, {"no_loss": "true"}),
]


@pytest.mark.parametrize("columns", SILENT_ROWS, ids=str)
def test_a_row_that_is_marked_as_not_to_be_learnt_is_left_out(columns):
    with pytest.raises(LeftOut) as left_out:
        whole(columns)
    assert left_out.value.reason == "masked"


@pytest.mark.parametrize(
    "columns",
    [{"weight": 0.5}, {"weight": "0.25"}, {"sample_weight": 3}, {"loss_weight": 2}, {"loss_mask": [0, 1]}],
    ids=str,
)
def test_a_row_that_is_to_count_in_part_is_refused(columns):
    with pytest.raises(ConfigurationError, match=f"'{next(iter(columns))}'.*wholly or not at all"):
        whole(columns)


def columns_of(row: dict, **fields):
    return conversation(row, PLACE, DataSpec(train=["/x"], **fields), "columns")


@pytest.mark.parametrize("answer", [{"completion": "3"}, {"completion": [said("3")]}], ids=str)
def test_an_answer_that_ktos_own_columns_label_as_bad_is_refused(answer):
    row = {"prompt": "1+1="} | answer
    for bad in (row | {"label": False}, row | {"kto_tag": False}):
        with pytest.raises(ConfigurationError, match="KTO"):
            columns_of(bad, response_key="completion")
    with pytest.raises(ConfigurationError, match="KTO"):
        whole({"kto_tag": False})


def test_a_class_next_to_prompt_and_response_is_no_label_of_kto():
    assert columns_of({"prompt": "1+1=", "response": "2", "label": False})


def test_columns_that_the_spec_reads_are_no_marks():
    row = {"weight": "0", "masked": "1"}
    assert columns_of(row, prompt_key="weight", response_key="masked")
    assert columns_of({"weight": {"text": "0"}, "response": "1"}, prompt_key="weight.text")


@pytest.mark.parametrize("mark", [{"weight": math.nan}, {"weight": "1.0"}, {"loss_mask": [1, 1]}], ids=str)
def test_a_message_has_the_same_values_of_marks_as_a_row(mark):
    assert read(USER, said("y", **mark)).learnt == [1]
    assert read(USER, said("x"), USER, said("y", weight="0.0")).learnt == [1]
