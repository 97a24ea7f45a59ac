"""All columns of a prompt's row, by its index."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.files import places
from rljob_trainer.data.prompts import PromptSet, load_prompts
from rljob_trainer.failure import ConfigurationError

ROWS = [{"prompt": f"{'long' * (i % 2)}{i}", "answer": str(i), "extra_info": {"index": i}} for i in range(6)]


class Characters:
    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(c) for c in text]


@pytest.fixture
def prompts(tmp_path) -> PromptSet:
    """Of files of every format, one behind another; every second prompt is too long."""
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    (tmp_path / "c.json").write_text(json.dumps(ROWS))
    (tmp_path / "d.jsonl").write_text("\n" + "\n\n".join(map(json.dumps, ROWS)))
    pq.write_table(table, tmp_path / "e.parquet")
    files = [str(tmp_path / name) for name in ("a.parquet", "b.arrow", "c.json", "d.jsonl", "e.parquet")]
    spec = DataSpec(train=files, max_prompt_tokens=3)
    return load_prompts(
        spec,
        places("spec.data.train", spec.train),
        Characters(),
        lambda source, answer: None,
        tmp_path / "scratch" / "rows",
    )


def test_a_prompt_has_the_columns_of_its_row_whatever_the_format_and_whatever_was_left_out(prompts):
    assert len(prompts) == 15
    for prompt in reversed(prompts):
        assert prompt.row() == ROWS[prompt.index % 6] and prompt.row()["prompt"] == prompt.text


def test_files_are_copied_for_that_only_when_a_row_is_read(prompts, tmp_path):
    assert not (tmp_path / "scratch").exists()
    prompts[0].row()
    assert len(list((tmp_path / "scratch" / "rows").iterdir())) == 2


def test_a_file_that_became_shorter_is_named(prompts, tmp_path):
    (tmp_path / "e.parquet").unlink()
    pq.write_table(pa.Table.from_pylist(ROWS[:1]), tmp_path / "e.parquet")
    with pytest.raises(ConfigurationError, match="no longer holds the row of a prompt") as caught:
        prompts[-1].row()
    assert caught.value.field == "spec.data.train[4]"


def test_a_line_of_white_space_that_json_does_not_know_shifts_no_row(tmp_path):
    """A row that is read by its number would be another prompt's."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "1"}\n\u00a0\n{"prompt": "2"}\n')
    with pytest.raises(ConfigurationError, match="line 2 does not hold one object"):
        load_prompts(
            DataSpec(train=[str(file)]),
            places("spec.data.train", [str(file)]),
            Characters(),
            lambda source, answer: None,
            tmp_path,
        )
