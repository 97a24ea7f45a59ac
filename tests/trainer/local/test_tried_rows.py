"""`try`: what it shows of rows without a policy, and that every broken one is named with its file and place."""

import json
from pathlib import Path

import pytest
from tokenizers import normalizers

from rljob_trainer.data.tokenizer import unwritten
from rljob_trainer.local.rehearsal import command
from trainer.data.templates import QWEN
from trainer.local.rehearsal import SUM, Trial, custom, digits_only


def test_sft_shows_in_colour_what_is_learnt(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "xyz"}]
    trial = Trial(tmp_path, [{"messages": messages}], task="sft", data={"maxTokens": 64})
    plain = trial.run()
    assert plain.code == 0, plain.err
    assert "«xyz<|im_end|>»" in plain.out and "of them learnt" in plain.out
    assert "\x1b[32mxyz<|im_end|>\x1b[0m" in trial.run(colour=True).out


def test_pairs_show_both_answers_and_broken_rows_are_named(tmp_path: Path) -> None:
    row = {"prompt": "hi", "chosen": "xyz", "rejected": "zyx"}
    rejected = Trial(tmp_path, [row], task="dpo", data={"maxTokens": 64}).run()
    assert "chosen: " in rejected.out and "rejected: " in rejected.out and "«zyx<|im_end|>»" in rejected.out
    broken = Trial(tmp_path, [row, {"prompt": "hi", "chosen": 7}], task="dpo", data={"maxTokens": 64}).run()
    assert broken.code == 1 and "train.jsonl row 2" in broken.err


SILENT_BEFORE_CALLS = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{{ m.tool_calls | string }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""In the style of Llama 3.1's."""


@pytest.mark.parametrize(("template", "is_noted"), [(SILENT_BEFORE_CALLS, True), (QWEN, False)])
def test_what_the_assistant_says_before_a_call_and_the_template_leaves_out_is_noted(
    tmp_path: Path, template: str, is_noted: bool
) -> None:
    call = {"role": "assistant", "content": "I add.", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    rows = [HELLO, {"messages": [HELLO["messages"][0], call]}]
    data = {"maxTokens": 64, "chatTemplate": {"arguments": {"add_vision_id": True}}}
    found = Trial(tmp_path, rows, task="sft", data=data, template=template).run()
    assert found.code == 0 and "reads no variable 'add_vision_id'" in found.out, found.err
    assert ("leaves out what the assistant says in a turn that also calls functions" in found.out) == is_noted


HELLO = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
NO_TURNS, LONG = (
    {"messages": "oops"},
    {"messages": [HELLO["messages"][0], {"role": "assistant", "content": "yo " * 99}]},
)


def test_every_supervised_row_is_read_up_to_the_limit_and_with_all_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST", 150)
    rows = [HELLO] * 400
    rows[123], rows[200], rows[121], rows[141] = NO_TURNS, {"messages": [{"role": 7}]}, LONG, LONG
    trial = Trial(tmp_path, rows, task="sft", data={"maxTokens": 64})
    first = trial.run()
    assert first.code == 1 and "train.jsonl: first 150 of 400 rows" in first.out
    assert "  rows 122, 142 are left out: it is longer than spec.data.maxTokens\n" in first.out
    assert "train.jsonl row 124: " in first.err and "row 201" not in first.err and "1 mistake, " in first.err
    every = trial.run(everything=True)
    assert every.code == 1 and "train.jsonl: 400 rows" in every.out
    assert "train.jsonl row 124: " in every.err and "train.jsonl row 201: " in every.err and "2 mistakes, " in every.err


def test_of_many_rows_that_cannot_be_used_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    found = Trial(tmp_path, [HELLO, *[NO_TURNS] * 25, HELLO], task="sft", data={"maxTokens": 64}).run()
    assert found.code == 1 and "train.jsonl row 11: " in found.err and "row 12" not in found.err
    assert "; 15 more rows of the file cannot be used\n" in found.err


def test_data_from_which_nothing_is_learnt_are_refused_as_by_a_job(tmp_path: Path) -> None:
    found = Trial(tmp_path, [LONG] * 3, task="sft", data={"maxTokens": 64}).run()
    assert found.code == 1 and "nothing can be learnt from any of the 3 rows" in found.err
    assert "  rows 1, 2, 3 are left out: " in found.out


def test_documents_are_read_to_the_end_and_what_is_no_text_is_named(tmp_path: Path) -> None:
    rows = [{"text": "abc"}, *[{"text": "def"}] * 8, {"text": 7}, {"text": ""}, {"text": "ghi"}]
    trial = Trial(tmp_path, rows, task="pretrain", data={"maxTokens": 64})
    (tmp_path / "train.jsonl").open("a").write("[1]\n")
    found = trial.run()
    assert found.code == 1 and "2 mistakes, " in found.err
    assert "train.jsonl row 10: column 'text' holds 7, which is not a text" in found.err
    assert "train.jsonl row 13: cannot be read: " in found.err
    assert "  row 11 is left out: there is no text\n" in found.out and "abc" in found.out


def test_what_a_rehearsal_does_not_read_need_not_be_here_and_what_it_reads_is_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path, model={"megatronCheckpoint": "/data/elsewhere"})
    assert trial.run().code == 0
    (tmp_path / "train.jsonl").unlink()
    missing = trial.run()
    assert missing.code == 1 and "spec.data.train[0] = /data/train.jsonl" in missing.err


def test_rows_of_a_users_own_function_are_shown_as_the_policy_gets_them(tmp_path: Path) -> None:
    code = "def rows(row):\n    return row | {'prompt': 'Sum: ' + row['prompt']} if row['answer'] == '7' else None\n"
    found = custom(Trial(tmp_path), code).run()
    assert (found.code, found.err) == (0, "")
    assert ": 1 rows; prompts of 9 tokens" in found.out and "    Sum: 4+3=\n" in found.out


@pytest.mark.parametrize("task", ["", "sft"])
def test_a_row_for_which_the_users_function_raises_is_named_with_its_file(tmp_path: Path, task: str) -> None:
    rows, changes = [SUM, SUM | {"prompt": 7}], {"task": task} if task else {}
    code = "def rows(row): return {'prompt': row['prompt'].upper(), 'response': 'a'}\n"
    found = custom(Trial(tmp_path, rows, **changes), code).run()
    assert found.code == 1
    assert f"spec.data.train[0] = {tmp_path}/train.jsonl row 2: rows() in custom.py: AttributeError: 'int'" in found.err


def test_only_the_rows_that_are_tried_are_made(tmp_path: Path) -> None:
    rows = [SUM | {"answer": str(i)} for i in range(command.MOST + 5)]
    code = "def rows(row):\n    assert row['answer'] != '2003'\n    return row\n"
    trial = custom(Trial(tmp_path, rows), code)
    assert trial.run().code == 0 and "row 2004: rows() in custom.py: AssertionError" in trial.run(everything=True).err


def test_another_form_of_a_character_is_not_left_out(tmp_path: Path) -> None:
    """`e` with an accent of its own, which Unicode composes, as some tokenizers do; and capitals."""
    tokenizer = digits_only(
        tmp_path,
        "\N{LATIN SMALL LETTER E WITH ACUTE}a",
        normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
    )
    text = "E\N{COMBINING ACUTE ACCENT}A"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert unwritten(tokenizer, text, tokens) == "" and unwritten(tokenizer, text + "o", tokens) == "o"


def test_documents_that_the_tokenizer_cannot_write_are_noted(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [{"text": "1+2"}, {"text": "one + 2"}], task="pretrain", data={"maxTokens": 64})
    assert "no token for" not in trial.run().out
    digits_only(tmp_path)
    found = trial.run()
    assert (
        found.code == 0
        and "row 2: the tokenizer has no token for 'one', so the model reads the text without;" in found.out
    )


def test_columns_that_nothing_reads_are_named(tmp_path: Path) -> None:
    rows = [HELLO | {"functions": [], "system": "", "id": 1}, HELLO | {"score": 2, "weight": 1}]
    found = Trial(tmp_path, rows, task="sft", data={"maxTokens": 64}).run()
    assert "  columns that are not read: functions, id, score\n" in found.out
    paired = [{"prompt": "hi", "chosen": "x", "rejected": "y", "score_chosen": 1}]
    found = Trial(tmp_path, paired, task="dpo", data={"maxTokens": 64}).run()
    assert "  columns that are not read: score_chosen\n" in found.out
    assert "not read" not in Trial(tmp_path, [HELLO], task="sft", data={"maxTokens": 64}).run().out


PAIR = {"prompt": "hi", "response": "yo"}
TEXTS, RENDERED = "texts are taken as they are", "a text that the chat template is given has '<|im_end|>' in it"


@pytest.mark.parametrize(
    ("row", "texts", "note"),
    [
        (PAIR, False, TEXTS),
        (PAIR, True, None),
        (PAIR | {"prompt": HELLO["messages"][:1]}, False, None),
        (HELLO, False, None),
        (HELLO | {"prompt": "hi"}, False, None),
        (PAIR | {"prompt": "<|im_start|>user\nhi<|im_end|>\n"}, True, RENDERED),
        (PAIR | {"prompt": "<|im_start|>user\nhi<|im_end|>\n"}, False, TEXTS),
    ],
)
def test_texts_that_go_through_no_template_or_went_through_it_before_are_noted(
    tmp_path: Path, row: dict, texts: bool, note: str | None
) -> None:
    data = {"maxTokens": 64, "chatTemplate": {"texts": texts}}
    found = Trial(tmp_path, [row], task="sft", data=data).run()
    assert found.code == 0, found.err
    assert [one for one in (TEXTS, RENDERED) if one in found.out] == ([note] if note else [])
    if "response" in row:
        asked = {"prompt": row["prompt"], "answer": "5", "data_source": "sum"}
        found = Trial(tmp_path, [asked], data={"chatTemplate": {"texts": texts}}).run()
        assert [one for one in (TEXTS, RENDERED) if one in found.out] == ([note] if note else []), found.err


@pytest.mark.parametrize(("answer", "is_noted"), [("yo", True), (HELLO["messages"], False)])
def test_answers_of_pairs_that_are_whole_conversations_go_through_the_template(
    tmp_path: Path, answer: object, is_noted: bool
) -> None:
    other = "no" if is_noted else [HELLO["messages"][0], {"role": "assistant", "content": "no"}]
    row = {"prompt": "hi", "chosen": answer, "rejected": other}
    found = Trial(tmp_path, [row], task="dpo", data={"maxTokens": 64}).run()
    assert (TEXTS in found.out) == is_noted, found.err


def test_held_out_rows_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    trial = Trial(tmp_path, data={"validation": ["/data/held.jsonl"]})
    trial.write("held.jsonl", "".join(json.dumps(row) + "\n" for row in (SUM, SUM | {"prompt": "9+9="})))
    assert ": 1 of 2 rows are in spec.data.train, too" in trial.run().out
    trial.write("held.jsonl", json.dumps(SUM | {"prompt": "9+9="}))
    assert "are in spec.data.train, too" not in trial.run().out
