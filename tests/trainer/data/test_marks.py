"""Messages that say of themselves whether they are to be learnt."""

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


@pytest.mark.parametrize(
    "mark", [{"weight": 1}, {"weight": 1.0}, {"weight": None}, {"masked": False}, {"loss": 0.3}, {"label": True}]
)
def test_a_row_that_is_marked_as_to_be_learnt_or_not_marked_is_learnt(mark):
    assert whole(mark).learnt == [1]


@pytest.mark.parametrize(
    "mark", [{"weight": 0}, {"loss_mask": 0.0}, {"trainable": False}, {"masked": 1}, {"no_loss": "true"}]
)
def test_a_row_that_is_marked_as_not_to_be_learnt_is_left_out(mark):
    with pytest.raises(LeftOut) as left_out:
        whole(mark)
    assert left_out.value.reason == "masked"


@pytest.mark.parametrize(
    "mark", [{"weight": 0.5}, {"sample_weight": 3}, {"loss_mask": [0, 1]}, {"label": False}, {"kto_tag": False}]
)
def test_a_row_that_counts_in_part_or_is_a_bad_answer_is_refused(mark):
    with pytest.raises(ConfigurationError, match=next(iter(mark)) if "kto_tag" not in mark else "KTO"):
        whole(mark)
