"""Rows by their number, without the others in memory."""

import json
import random
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_trainer.data import tables
from rljob_trainer.data.files import Place, read_records
from rljob_trainer.data.tables import SCAN_BYTES, LinesTable, open_table
from rljob_trainer.failure import ConfigurationError

ROWS = [{"text": f"row {i}", "parts": [{"n": i}]} for i in range(3000)]


def write(path: Path, rows: list) -> Path:
    """In batches of several sizes, where the format has them."""
    table = pa.Table.from_pylist(rows)
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=700)
        case ".stream":
            path = path.with_suffix(".arrow")
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=999)
        case ".arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=999)
        case ".json":
            path.write_text(json.dumps(rows))
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def opened(path: Path, tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return open_table(Place("spec.data.train[0]", str(path)), scratch)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".stream", ".json", ".jsonl"])
def test_every_format_gives_any_row_by_its_number(tmp_path, suffix):
    table = opened(write(tmp_path / f"a{suffix}", ROWS), tmp_path)
    assert len(table) == len(ROWS)
    for row in (0, 2999, 698, 699, 700, 998, 999, 1023, 1024, 5):
        assert table[row] == ROWS[row] and table.number(row) == row + 1


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_lines_may_be_empty_and_keep_their_numbers_and_their_file_its_mark(tmp_path, end):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + f'{{"a": 1}}\n\n   \t  \n{{"a": "ж"}}\r\n{{}}{end}'.encode())
    table = opened(file, tmp_path)
    assert [table[i] for i in range(len(table))] == [{"a": 1}, {"a": "ж"}, {}]
    assert [table.number(i) for i in range(3)] == [1, 4, 5]


def test_a_mark_of_utf_8_may_stand_before_any_line_as_where_files_were_joined(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    table = opened(file, tmp_path)
    assert [table[i] for i in range(2)] == [{"a": 1}, {"a": 2}]
    assert [record for _, record in read_records(Place("f", str(file)), ())] == [{"a": 1}, {"a": 2}]


def test_lines_end_as_python_reads_them(tmp_path, monkeypatch):
    """Those of old Macs as well, wherever a scan ends between CR and LF."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\r{"a": 2}\r\n\r{"a": 3}\n\r\n{"a": 4}\r')
    lines = file.read_text().split("\n")
    for scan in (*range(1, 20), SCAN_BYTES):
        monkeypatch.setattr(tables, "SCAN_BYTES", scan)
        table = opened(file, tmp_path)
        assert [table[i] for i in range(len(table))] == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
        assert [table.number(i) for i in range(4)] == [n for n, line in enumerate(lines, 1) if line]


def test_the_number_of_a_line_is_known_without_reading_the_lines_before_it(tmp_path):
    lines = ["{}" if chance.random() < 0.7 else "  " for chance in [random.Random(0)] for _ in range(500)] + ["{}"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    table = cast(LinesTable, opened(tmp_path / "a.jsonl", tmp_path))
    table._bytes.close()
    assert [table.number(i) for i in range(len(table))] == [n for n, line in enumerate(lines, 1) if line == "{}"]


def test_a_file_longer_than_one_scan_is_read_as_a_whole(tmp_path):
    file, line = tmp_path / "a.jsonl", json.dumps({"text": "x" * 1000}) + "\n"
    file.write_text(line * (SCAN_BYTES // len(line) + 3))
    table = opened(file, tmp_path)
    assert len(table) == SCAN_BYTES // len(line) + 3
    assert {len(table[i]["text"]) for i in range(0, len(table), 997)} == {1000} and table[len(table) - 1]


@pytest.mark.parametrize("text", ["", "\n \n", " "])
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_file_without_a_row_is_refused(tmp_path, text, suffix):
    (tmp_path / f"a{suffix}").write_text(text)
    with pytest.raises(ConfigurationError, match="holds no row"):
        opened(tmp_path / f"a{suffix}", tmp_path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("none.jsonl", "no such file"), ("a.csv", "ends in none of .parquet"), ("a.parquet", "read as Parquet")],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, complaint):
    if not name.startswith("none"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ConfigurationError, match=complaint):
        opened(tmp_path / name, tmp_path)


def test_a_scratch_directory_that_is_full_is_not_the_files_fault(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "1.arrow").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        opened(write(tmp_path / "a.parquet", ROWS), tmp_path)


TWICE = '{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}'


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "list.json"])
def test_an_object_with_two_values_of_one_name_is_refused_since_nobody_knows_which_counts(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    file.write_text(f"[{TWICE}]" if name == "list.json" else TWICE)
    with pytest.raises((ConfigurationError, ValueError), match="an object has 'c' more than once"):
        open_table(Place("f", str(file)), tmp_path)[0]
    with pytest.raises(ConfigurationError, match="an object has 'c' more than once"):
        list(read_records(Place("f", str(file)), ["a"]))


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "é"}\n', encoding=encoding)
    with pytest.raises(ConfigurationError, match="save the file as UTF-8"):
        list(read_records(Place("f", str(tmp_path / "a.jsonl")), ["a"]))
    table = open_table(Place("f", str(tmp_path / "a.jsonl")), tmp_path)
    with pytest.raises(UnicodeDecodeError):
        table[0]
