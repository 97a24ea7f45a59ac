import errno
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_trainer.data.files import READERS, Place, read_records
from rljob_trainer.failure import ConfigurationError

RECORDS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "extra": {"deep": i}} for i in range(2500)]


def parquet(file: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), file, row_group_size=700)


def arrow(file: Path, stream: bool) -> None:
    table = pa.Table.from_pylist(RECORDS)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=900)


WRITERS = {
    "a.parquet": parquet,
    "file.arrow": lambda file: arrow(file, stream=False),
    "stream.arrow": lambda file: arrow(file, stream=True),
    "list.json": lambda file: file.write_text(json.dumps(RECORDS, indent=1)),
    "lines.json": lambda file: file.write_text("".join(json.dumps(r) + "\n" for r in RECORDS)),
    "a.jsonl": lambda file: file.write_text("\ufeff" + "".join(json.dumps(r) + "\n" for r in RECORDS)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_records_in_order(tmp_path, name):
    WRITERS[name](tmp_path / name)
    read = list(read_records(Place("f", str(tmp_path / name)), ["prompt", "extra.deep"]))
    assert [(r["prompt"], r["extra"]["deep"]) for _, r in read] == [(r["prompt"], r["extra"]["deep"]) for r in RECORDS]
    assert [place.row for place, _ in read] == list(range(1, 2501))
    assert "answer" not in read[0][1] or "json" in name, "columns that nobody needs are not read"


def complaint(file: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        list(read_records(Place("spec.data.train[3]", str(file)), ["prompt"]))
    assert caught.value.field == "spec.data.train[3]"
    return str(caught.value)


def test_a_missing_file_and_one_of_no_known_format_are_refused(tmp_path):
    assert "no such file in the trainer pod" in complaint(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("prompt,answer")
    assert "ends in none of .parquet, .arrow, .json, .jsonl" in complaint(tmp_path / "x.csv")


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, suffix):
    file = tmp_path / f"x{suffix}"
    file.write_bytes(b"prompt,answer\n\xff\xfe")
    assert f"cannot be read as {READERS[suffix][0]}" in complaint(file)


def test_a_volume_that_goes_away_while_it_is_read_is_nobodys_mistake(tmp_path, monkeypatch):
    def gone(*_):
        raise OSError(errno.ESTALE, "Stale file handle")
        yield

    monkeypatch.setitem(READERS, ".jsonl", ("one JSON object per line", gone))
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(OSError, match="Stale"):
        list(read_records(Place("spec.data.train[0]", str(tmp_path / "x.jsonl")), ["prompt"]))


def test_a_file_without_rows_is_refused(tmp_path):
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "e.parquet")
    (tmp_path / "e.json").write_text("[]")
    (tmp_path / "e.jsonl").write_text("\n")
    for name in ("e.parquet", "e.json", "e.jsonl"):
        assert "holds no row" in complaint(tmp_path / name)


def test_a_broken_line_is_named_by_its_number(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": \n')
    assert "line 3 does not hold one object: Expecting value (column 12);" in complaint(tmp_path / "x.jsonl")
    (tmp_path / "cut.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b\n')
    assert "line 2 does not hold one object: Unterminated string" in complaint(tmp_path / "cut.jsonl")
    (tmp_path / "y.json").write_text('["a"]')
    assert "'a' stands where an object of columns belongs" in complaint(tmp_path / "y.json")
    (tmp_path / "z.json").write_text('{\n "data": []\n}')
    assert "line 1 does not hold one object" in complaint(tmp_path / "z.json")
