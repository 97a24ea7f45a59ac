from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.rows import Row, read_rows
from rljob_trainer.failure import ConfigurationError


def write(file: Path, **columns: list) -> str:
    pq.write_table(pa.table(columns), file)
    return str(file)


class Letters:
    """One token per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens, skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens))


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "a.parquet", prompt=["1+1=", "12+12="], answer=["2", "24"], data_source=["sum", "sum"])


def test_several_files_are_read_in_their_order(tmp_path, file):
    second = write(tmp_path / "b.parquet", prompt=["2+2="], answer=[4], data_source=["other"])
    rows = read_rows(DataSpec(train=[file, second]), "train")
    assert rows == [Row("1+1=", "2", "sum"), Row("12+12=", "24", "sum"), Row("2+2=", "4", "other")]


def test_columns_have_the_names_that_the_spec_says(tmp_path):
    file = write(tmp_path / "a.parquet", question=["q"], gold=["g"], source=["s"])
    spec = DataSpec(train=[file], prompt_key="question", answer_key="gold", data_source_key="source")
    assert read_rows(spec, "train") == [Row("q", "g", "s")]


def test_a_missing_file_is_named_by_its_place_in_the_spec(file):
    with pytest.raises(ConfigurationError, match="no such file") as caught:
        read_rows(DataSpec(train=[file, "/nowhere/x.parquet"]), "train")
    assert caught.value.field == "spec.data.train[1]"


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    file = write(tmp_path / "a.parquet", question=["q"], answer=["a"], data_source=["s"])
    with pytest.raises(
        ConfigurationError,
        match=r"no column 'prompt'; its columns are question, answer, data_source; set spec.data.promptKey",
    ):
        read_rows(DataSpec(train=[file]), "train")


def test_a_file_without_rows_and_one_that_is_not_parquet_are_refused(tmp_path):
    empty = write(
        tmp_path / "e.parquet",
        prompt=pa.array([], pa.string()),
        answer=pa.array([], pa.string()),
        data_source=pa.array([], pa.string()),
    )
    with pytest.raises(ConfigurationError, match="holds no row") as caught:
        read_rows(DataSpec(train=["/x"], validation=[empty]), "validation")
    assert caught.value.field == "spec.data.validation[0]"
    text = tmp_path / "t.parquet"
    text.write_text("prompt,answer")
    with pytest.raises(ConfigurationError, match="cannot be read as Parquet"):
        read_rows(DataSpec(train=[str(text)]), "train")


def test_a_prompt_that_is_no_text_is_refused(tmp_path):
    file = write(tmp_path / "a.parquet", prompt=[["chat"]], answer=["a"], data_source=["s"])
    with pytest.raises(ConfigurationError, match="not a text"):
        read_rows(DataSpec(train=[file]), "train")


def test_longer_prompts_are_left_out_and_counted_and_indices_stay(file):
    kept = load_prompts(DataSpec(train=[file], max_prompt_tokens=4), "train", Letters())
    assert [(p.index, p.text) for p in kept.prompts] == [(0, "1+1=")]
    assert kept.too_long == 1


def test_no_prompt_within_the_limit_is_an_error(file):
    with pytest.raises(ConfigurationError, match="all 2 prompts") as caught:
        load_prompts(DataSpec(train=[file], max_prompt_tokens=1), "train", Letters())
    assert caught.value.field == "spec.data.maxPromptTokens"
