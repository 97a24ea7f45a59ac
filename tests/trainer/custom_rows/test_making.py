"""spec.data.custom: a user's function or class between the data files and everything that reads them, in a real process."""

import json
import re
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api.spec.model import CustomRows, DataSpec
from rljob_trainer.custom_rows import making
from rljob_trainer.custom_rows.making import RowMaker
from rljob_trainer.data.files import Place, places, read_records
from rljob_trainer.data.prompts import PromptSet, load_prompts
from rljob_trainer.data.tables import FileRows
from rljob_trainer.failure import ConfigurationError
from trainer.data.test_prompts import tokenizer

ROWS = [{"question": f"{i}+1=", "gold": i + 1} for i in range(7)]
FUNCTION = """
def rows(row):
    return {"prompt": row["question"], "answer": row["gold"]}
"""


class Data:
    """Files, and the code that makes their rows."""

    def __init__(self, directory: Path, code: str, rows: list[Any] = ROWS, **custom: Any):
        self.directory = directory
        (directory / "custom.py").write_text(code)
        self.path = directory / "a.jsonl"
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.spec = DataSpec(
            train=[str(self.path)], custom=CustomRows(path=str(directory / "custom.py"), **custom), shuffle=False
        )
        self.times = 0

    def made(self, *others: str, most: int | None = None, moved=lambda text: None) -> list[Place]:
        """The files through one maker."""
        self.times += 1
        maker = RowMaker(self.spec, self.directory / f"scratch-{self.times}", most, moved)
        return list(maker(places("spec.data.train", [str(self.path), *others])))

    def records(self, **how: Any) -> list[Any]:
        """(row of the file, what was made of it)."""
        return [(place.row, record) for file in self.made(**how) for place, record in read_records(file, ())]

    def refused(self) -> str:
        with pytest.raises(ConfigurationError) as caught:
            self.made()
        return str(caught.value)

    def prompts(self) -> PromptSet:
        self.times += 1
        files = self.made()
        rows = self.directory / f"rows-{self.times}"
        return load_prompts(self.spec, files, tokenizer(None), lambda *_: None, rows)


def test_a_function_makes_the_prompts_that_a_policy_gets(tmp_path):
    prompts = Data(tmp_path, FUNCTION).prompts()
    assert [(p.text, p.answer) for p in prompts] == [(f"{i}+1=", str(i + 1)) for i in range(7)]
    assert prompts[3].row() == {"prompt": "3+1=", "answer": 4}, "rewards and agents get the row that was made"


def test_a_row_may_become_several_or_none_and_keeps_its_number_in_the_file(tmp_path):
    code = """
def rows(row):
    for i in range(row["gold"] % 3):
        yield {"prompt": row["question"], "i": i}
"""
    data = Data(tmp_path, code)
    expected = [(i + 1, {"prompt": f"{i}+1=", "i": j}) for i in range(7) for j in range((i + 1) % 3)]
    assert data.records() == expected
    read = FileRows(data.made(), tmp_path / "rows")
    assert [(read.place(i).row, read[i]) for i in range(len(expected))] == expected


def test_numbers_of_rows_are_lines_of_the_file_also_behind_empty_ones(tmp_path):
    data = Data(tmp_path, FUNCTION)
    data.path.write_text("\n\n" + data.path.read_text().replace("\n", "\n\n"))
    assert [row for row, _ in data.records()] == [3, 5, 7, 9, 11, 13, 15]


def test_a_class_is_made_once_for_all_files_with_its_arguments_and_remembers(tmp_path):
    code = """
class Fresh:
    def __init__(self, least: int):
        self.seen, self.least = set(), least

    def __call__(self, row, file):
        if row["gold"] < self.least or row["gold"] in self.seen:
            return None
        self.seen.add(row["gold"])
        return {"prompt": row["question"], "file": file}
"""
    data = Data(tmp_path, code, function="Fresh", arguments={"least": 3})
    (tmp_path / "b.jsonl").write_text(json.dumps({"question": "1+2=", "gold": 3}) + '\n{"question": "a", "gold": 99}\n')
    first, second = data.made(str(tmp_path / "b.jsonl"))
    assert [place.row for place, _ in read_records(first, ())] == [3, 4, 5, 6, 7]
    expected = [(2, {"prompt": "a", "file": str(tmp_path / "b.jsonl")})]
    assert [(place.row, record) for place, record in read_records(second, ())] == expected


def test_a_columnar_file_gives_all_its_columns_and_bytes_come_back_as_an_image_that_can_be_read(tmp_path):
    code = "def rows(row): return {**row, 'image': row['image'], 'prompt': row['q']}"
    data = Data(tmp_path, code)
    pq.write_table(pa.table({"q": ["a"], "image": [b"\x00\xff"], "v": [[1.5, 2.0]]}), tmp_path / "b.parquet")
    data.path = tmp_path / "b.parquet"
    ((_, record),) = data.records()
    assert record == {"q": "a", "image": "data:;base64,AP8=", "v": [1.5, 2.0], "prompt": "a"}


def test_values_of_numpy_and_dates_become_json(tmp_path):
    code = """
import datetime, numpy

def rows(row):
    return {"a": numpy.arange(3), "b": numpy.float32(0.5), "c": datetime.date(2026, 1, 2), "d": row["gold"]}
"""
    assert Data(tmp_path, code, ROWS[:1]).records() == [(1, {"a": [0, 1, 2], "b": 0.5, "c": "2026-01-02", "d": 1})]


def test_every_attempt_makes_the_same_rows_also_of_random_numbers_and_sets(tmp_path):
    code = """
import random
import numpy

def rows(row):
    order = list({f"word {i}" for i in range(50)})
    return {"prompt": " ".join(order[:5]), "answer": f"{random.random()} {numpy.random.rand()}"}
"""
    data = Data(tmp_path, code)
    first, second = data.prompts(), data.prompts()
    assert [p.text for p in first] == [p.text for p in second] and len({p.answer for p in first}) == 7
    assert first.digest == second.digest


def test_other_code_gives_other_data_which_a_resume_refuses_by_their_digest(tmp_path):
    first = Data(tmp_path, FUNCTION).prompts()
    other = Data(tmp_path, FUNCTION.replace('row["question"]', '"Say: " + row["question"]')).prompts()
    assert first.digest != other.digest


def test_many_rows_are_made_in_order_and_each_call_counts_as_progress(tmp_path):
    rows, said = [{"question": str(i), "gold": i} for i in range(3000)], list[str]()
    data = Data(tmp_path, FUNCTION, rows)
    assert [record["answer"] for _, record in data.records(moved=said.append)] == list(range(3000))
    assert len(said) > 5 and said[-1] == f"rows() in custom.py made 3000 rows of {data.path}"


def test_only_the_first_rows_are_made_where_no_more_are_asked_for(tmp_path):
    code = FUNCTION.replace("    return", "    assert row['gold'] < 4\n    return")
    assert len(Data(tmp_path, code).records(most=3)) == 3


def test_rows_that_become_slow_are_made_in_answers_of_a_second(tmp_path):
    """Each is progress. Without that limit the call behind row 255 would be one of 256 rows."""
    code = (
        "import time\ndef rows(row):\n    time.sleep(0.01 if row['gold'] >= 255 else 0)\n    return {'prompt': 'a'}\n"
    )
    said = list[str]()
    Data(tmp_path, code, [{"gold": i} for i in range(511)]).made(moved=said.append)
    counts = [int(re.search(r"made (\d+) rows", text)[1]) for text in said]
    assert counts[-1] == 511 and max(b - a for a, b in pairwise(counts)) <= 128


def test_a_row_that_never_comes_back_to_python_ends_the_job_soon_behind_many_quick_ones(tmp_path):
    code = """
import signal, time

def rows(row):
    if row["gold"] == 40:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(600)
    return {"prompt": "a"}
"""
    began = monotonic()
    refused = Data(tmp_path, code, [{"gold": i} for i in range(64)], timeout_seconds=1).refused()
    assert "took longer than 1 s" in refused and monotonic() - began < 25, "not a second for each of 32 rows"


@pytest.mark.parametrize("text", ["'x' * 5_000_000", "'\"' * 4_000_000 if row['gold'] % 2 else chr(92) * 8_000_000"])
def test_large_rows_are_made_in_several_answers(tmp_path, text):
    code = f"def rows(row): return {{'prompt': {text}, 'answer': row['gold']}}"
    rows = [{"gold": i} for i in range(12)]
    assert [record["answer"] for _, record in Data(tmp_path, code, rows).records()] == list(range(12))


RAISES = "def rows(row):\n    return {'prompt': row['wrong']}\n"
LATE = "import time\ndef rows(row):\n    time.sleep(60 if row['gold'] == 5 else 0)\n    return {'prompt': 'a'}\n"
STUCK = """
def rows(row):
    while row["gold"] == 5:
        try:
            list(range(10**6))
        except Exception:
            pass
    return {"prompt": "a"}
"""
ENDS = "import os\ndef rows(row):\n    os._exit(3) if row['gold'] == 1 else None\n    return {'prompt': 'a'}\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            RAISES,
            "row 1: rows() in custom.py: KeyError: 'wrong' (line 2: return {'prompt': row['wrong']}), where row has 'question', 'gold'; correct",
        ),
        (RAISES.replace("row['wrong']", "1 / (row['gold'] - 5)"), "row 5: rows() in custom.py: ZeroDivisionError"),
        (LATE, "row 5: took longer than 0.3 s; make the row sooner, or raise spec.data.custom.timeoutSeconds"),
        (STUCK, "row 5: took longer than 0.3 s; make the row sooner"),
        (ENDS, "row 1: its process ended during the call; correct spec.data.custom"),
        ("def rows(row): return 3", "row 1: rows() in custom.py returned 3, which is neither a dict nor several"),
        ("def rows(row): return [3]", "returned several rows of which one is 3 and no dict; return a dict of columns"),
        ("def rows(row): return {'a': {1}}", "a row that cannot be written as JSON: it holds a set, {1}"),
        ("def rows(row): return {'a': object}", "a row that cannot be written as JSON: it holds a type, <class"),
        ("def rows(row): return [{}] * 1025", "returned more than 1024 rows for one"),
        ("def rows(row): return {'a': 'x' * 2**25}", "characters of JSON, and at most 16777216 may be made of one"),
        ("def rows(row): return None", ": rows() in"),
    ],
)
def test_a_row_that_cannot_be_made_ends_the_job_with_file_row_and_fix(tmp_path, code, expected):
    data = Data(tmp_path, code, timeout_seconds=0.3 if "took" in expected else 10)
    refused = data.refused()
    assert refused.startswith(f"spec.data.train[0] = {data.path}") and expected in refused


@pytest.mark.parametrize(
    ("code", "custom", "expected"),
    [
        ("def rows(row: return", {}, "cannot be loaded: rows() in custom.py: SyntaxError"),
        ("x = 1", {}, "cannot be loaded: rows() in custom.py: NoSuchFunction: the file has no such function"),
        ("import nothing_like_it", {}, "No module named 'nothing_like_it'"),
        (
            "def rows(record): return {}",
            {},
            "nothing to give as 'record': parameters get their values by name, out of row, file",
        ),
        (FUNCTION, {"arguments": {"least": 3}}, "takes no argument 'least' of spec.data.custom.arguments"),
        ("def rows(row, file): return {}", {"arguments": {"row": 3}}, "every call has a 'row' of its own"),
        ("async def rows(row): return {}", {}, "is async: rows are made one after another"),
        ("class rows:\n    def __init__(self, n): 1 / n", {"arguments": {"n": 0}}, "ZeroDivisionError"),
        ("class rows: pass", {}, "is not a callable object"),
    ],
)
def test_code_that_cannot_make_rows_is_refused_before_any_row_is_read(tmp_path, code, custom, expected):
    refused = Data(tmp_path, code, **custom).refused()
    assert refused.startswith(f"spec.data.custom.path = {tmp_path / 'custom.py'}: cannot be loaded: ")
    assert expected in refused


def test_a_missing_file_of_code_is_named(tmp_path):
    data = Data(tmp_path, FUNCTION)
    (tmp_path / "custom.py").unlink()
    assert "spec.data.custom.path" in (refused := data.refused()) and "there is no such file" in refused


def test_without_custom_rows_files_are_read_as_they_are(tmp_path):
    files = places("spec.data.train", ["/nowhere.jsonl"])
    assert RowMaker(DataSpec(train=["/nowhere.jsonl"]), tmp_path)(files) is files


def test_what_the_function_prints_is_no_answer(tmp_path, capfd):
    code = "def rows(row):\n    print('{\"number\": 0}')\n    return {'prompt': 'a'}\n"
    assert len(Data(tmp_path, code).records()) == 7 and '"number"' in capfd.readouterr().err


def test_nothing_of_the_function_runs_on_when_its_rows_are_made(tmp_path):
    code = f"""
import os, subprocess, sys

def rows(row):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open({str(tmp_path / "pids")!r}, "a").write(f"{{child.pid}}\\n")
    return {{"prompt": "a"}}
"""
    Data(tmp_path, code, ROWS[:2]).records()
    for pid in (tmp_path / "pids").read_text().split():
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "Z (zombie)" in status.read_text()


def test_an_answer_that_is_lost_names_all_rows_that_may_be_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "QUICK_SECONDS", 60.0)
    code = "import os\ndef rows(row):\n    os._exit(3) if row['gold'] == 6 else None\n    return {'prompt': 'a'}\n"
    assert (
        "row 4: its process ended during the call (it made this row, or one of the 3 after it)"
        in Data(tmp_path, code).refused()
    )
