import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.conversations import messages_of
from rljob_trainer.data.files import Place, places
from rljob_trainer.data.rows import read_rows
from rljob_trainer.failure import ConfigurationError


def write(file: Path, **columns: list) -> str:
    pq.write_table(pa.table(columns), file)
    return str(file)


def rows(spec: DataSpec, split: str = "train") -> list[tuple]:
    files = places(f"spec.data.{split}", getattr(spec, split))
    return [(row.prompt, row.answer, row.data_source) for row in read_rows(spec, files)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "a.parquet", prompt=["1+1=", "12+12="], answer=["2", "24"], data_source=["sum", "sum"])


def test_several_files_of_several_formats_are_read_in_their_order(tmp_path, file):
    second = tmp_path / "b.jsonl"
    second.write_text('{"prompt": "2+2=", "answer": 4, "data_source": "other"}\n')
    assert rows(DataSpec(train=[file, str(second)])) == [
        ("1+1=", "2", "sum"),
        ("12+12=", "24", "sum"),
        ("2+2=", "4", "other"),
    ]


def test_columns_have_the_names_that_the_spec_says(tmp_path):
    file = write(tmp_path / "a.parquet", question=["q"], gold=["g"], source=["s"])
    spec = DataSpec(train=[file], prompt_key="question", answer_key="gold", data_source_key="source")
    assert rows(spec) == [("q", "g", "s")]


def test_a_dotted_key_leads_into_a_nested_column_unless_a_column_has_that_very_name(tmp_path):
    nested = write(tmp_path / "a.parquet", prompt=["q"], reward_model=[{"ground_truth": "g", "style": "rule"}])
    flat = write(tmp_path / "b.parquet", prompt=["q"], **{"reward_model.ground_truth": ["f"]})
    assert rows(DataSpec(train=[nested, flat], answer_key="reward_model.ground_truth")) == [
        ("q", "g", ""),
        ("q", "f", ""),
    ]
    with pytest.raises(ConfigurationError, match="no column 'reward_model.truth'"):
        rows(DataSpec(train=[nested], answer_key="reward_model.truth"))


def test_a_path_into_a_null_finds_null(tmp_path):
    file = write(tmp_path / "a.parquet", prompt=["q", "r"], reward_model=[None, {"ground_truth": "g"}])
    assert rows(DataSpec(train=[file], answer_key="reward_model.ground_truth")) == [("q", "", ""), ("r", "g", "")]


def test_an_answer_of_bytes_is_refused_since_no_response_equals_what_python_writes_for_it(tmp_path):
    with pytest.raises(ConfigurationError, match=r"row 1: column 'answer' holds b'4', which is not a single text"):
        rows(DataSpec(train=[write(tmp_path / "a.parquet", prompt=["q"], answer=[b"4"])]))


@pytest.mark.parametrize(
    ("value", "text"), [(4, "4"), (0.5, "0.5"), (True, "True"), ("x", "x"), (None, ""), (float("nan"), "")]
)
def test_answers_are_texts_of_any_single_value(tmp_path, value, text):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": "q", "answer": value}))
    assert rows(DataSpec(train=[str(file)])) == [("q", text, "")]


def test_columns_of_default_names_may_be_absent_and_others_may_not(tmp_path):
    file = write(tmp_path / "a.parquet", prompt=["q"])
    assert rows(DataSpec(train=[file])) == [("q", "", "")]
    for key, field in (("answer_key", "answerKey"), ("data_source_key", "dataSourceKey"), ("prompt_key", "promptKey")):
        with pytest.raises(
            ConfigurationError, match=f"no column 'gold'; its columns are prompt; set spec.data.{field}"
        ):
            rows(DataSpec(train=[file], **{key: "gold"}))


def test_a_missing_column_is_told_from_all_columns_of_the_file(tmp_path):
    file = write(tmp_path / "a.parquet", prompt=["q"], answer=["4"], level=[1])
    with pytest.raises(ConfigurationError, match="no column 'solution'; its columns are prompt, answer, level;"):
        rows(DataSpec(train=[file], answer_key="solution"))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"prompt": ""}, "neither a text nor a list of messages"),
        ({"prompt": "  "}, "neither a text nor a list of messages"),
        ({"prompt": None}, "neither a text nor a list of messages"),
        ({"prompt": []}, "neither a text nor a list of messages"),
        ({"prompt": ["chat"]}, "not a message {role, content} of two texts"),
        ({"prompt": [{"role": "user", "content": None}]}, "not a message {role, content} of two texts"),
        ({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "the assistant's"),
        ({"prompt": "q", "answer": ["a", "b"]}, "not a single text"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, complaint):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": "good"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ConfigurationError, match=re.escape(complaint)) as caught:
        rows(DataSpec(train=["/x", str(file)][1:]))
    assert (caught.value.field, caught.value.value) == ("spec.data.train[0]", f"{file} row 2")


def test_content_of_parts_and_calls_without_content_are_read_as_sft_reads_them(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": chat}) + "\n" + json.dumps({"prompt": json.dumps(chat)}) + "\n")
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    said = (
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    )
    found = [prompt for prompt, _, _ in rows(DataSpec(train=[str(file)]))]
    assert found == [said, said]
    assert found[0] == messages_of(chat, "prompt", Place("spec.data.train[0]", str(file), 1))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]},
            "spec.data.imageKey also as images",
        ),
        ({"role": "user", "content": {"text": "q"}}, "not a text"),
        ({"role": "assistant", "content": None, "tool_calls": ["add"]}, "write calls as objects {name, arguments}"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "not a message {role, content} of two texts"),
    ],
)
def test_what_is_neither_text_nor_calls_is_refused_with_what_to_write(tmp_path, message, complaint):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": [message, {"role": "user", "content": "q"}]}))
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        rows(DataSpec(train=[str(file)]))


def test_a_chat_that_stands_in_its_column_as_json_text_is_read_as_messages(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    texts = [
        json.dumps(chat),
        " " + json.dumps(chat[1:], indent=2),
        "[1, 2, 3]",
        '[{"role": "user"}]',
        "[not JSON",
        "{}",
    ]
    file = write(tmp_path / "a.parquet", prompt=texts)
    found = [prompt for prompt, _, _ in rows(DataSpec(train=[file]))]
    assert found == [tuple(chat), tuple(chat[1:]), *texts[2:]], "what only looks like one stays a text"


def test_a_chat_in_json_text_follows_the_rules_for_messages(tmp_path):
    chat = json.dumps([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    with pytest.raises(ConfigurationError, match="the assistant's"):
        rows(DataSpec(train=[write(tmp_path / "a.parquet", prompt=[chat])]))


def test_messages_lose_the_fields_that_only_other_messages_of_the_file_have(tmp_path):
    chat = [{"role": "system", "content": "s", "name": None}, {"role": "user", "content": "q", "name": "n"}]
    file = write(tmp_path / "a.parquet", prompt=[chat])
    ((messages, _, _),) = rows(DataSpec(train=[file]))
    assert messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "q", "name": "n"})
