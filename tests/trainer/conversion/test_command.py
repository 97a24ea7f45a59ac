"""`python -m rljob_trainer data` as people call it, on small copies that look like those of the hub."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rljob_api.spec.model import DataSpec
from rljob_trainer.__main__ import main
from rljob_trainer.data.files import places
from rljob_trainer.data.rows import read_rows

Convert = Callable[..., tuple[int, str]]


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture) -> Convert:
    """`data` with arguments; what it printed, without the test's own directory."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["data", *arguments, str(tmp_path / "out")])
        said = capsys.readouterr()
        return code, (said.out + said.err).replace(f"{tmp_path}/", "")

    return run


def parquet(file: Path, rows: Sequence[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), file)


def lines(file: Path, rows: Sequence[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def questions(*names: str) -> list[dict]:
    return [{"question": f"{name}?", "answer": f"...\n#### {i}"} for i, name in enumerate(names)]


def verl(*numbers: int) -> list[dict]:
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": f"What is {n}?", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(n), "style": "rule"},
            "extra_info": {"index": str(n)},
        }
        for n in numbers
    ]


def written(tmp_path: Path, split: str) -> list[tuple[str, str, str]]:
    """Question (first line of the last message), answer and data source, as the trainer reads them."""
    file = str(tmp_path / "out" / f"{split}.parquet")
    rows = list(read_rows(DataSpec(train=[file]), places("spec.data.train", [file])))
    assert all(isinstance(row.prompt, tuple) for row in rows)
    return [(row.prompt[-1]["content"].splitlines()[0], row.answer, row.data_source) for row in rows]


def test_a_copy_of_the_hub_s_repository_becomes_two_files_that_the_trainer_reads(tmp_path, convert) -> None:
    for config in ("main", "socratic"):  # the same questions, with other solutions
        parquet(tmp_path / "gsm8k" / config / "train-00000-of-00001.parquet", questions("a", "b", "c"))
        parquet(tmp_path / "gsm8k" / config / "test-00000-of-00001.parquet", questions("d", "e"))
    (tmp_path / "gsm8k" / "dataset_infos.json").write_text("{}")
    lines(tmp_path / "gsm8k" / ".cache" / "train.jsonl", [{"no": "row"}])
    code, said = convert("gsm8k", "--from", str(tmp_path / "gsm8k"))
    assert code == 0
    assert said == ("out/train.parquet: 3 rows\nout/heldout.parquet: 2 rows\nleft out: 5 rows that repeat a prompt\n")
    assert written(tmp_path, "train") == [(f"{q}?", str(i), "openai/gsm8k") for i, q in enumerate("abc")]
    assert written(tmp_path, "heldout") == [(f"{q}?", str(i), "openai/gsm8k") for i, q in enumerate("de")]


def test_a_training_prompt_that_is_held_out_leaves_the_training_rows(tmp_path, convert) -> None:
    lines(tmp_path / "train.jsonl", questions("a", "b"))
    lines(tmp_path / "test.jsonl", questions("b"))
    code, _ = convert("gsm8k", "--from", str(tmp_path / "train.jsonl"), "--from", str(tmp_path / "test.jsonl"))
    assert code == 0
    assert [row[0] for row in written(tmp_path, "train")] == ["a?"]
    assert [row[0] for row in written(tmp_path, "heldout")] == ["b?"]


def test_one_file_makes_one_file(tmp_path, convert) -> None:
    lines(tmp_path / "test.jsonl", [{"problem": "Find it.", "solution": "\\boxed{7}", "answer": "7", "subject": "x"}])
    assert convert("math", "--from", str(tmp_path / "test.jsonl")) == (0, "out/heldout.parquet: 1 rows\n")
    assert written(tmp_path, "heldout") == [("Find it.", "7", "lighteval/MATH")]


def test_math_is_read_from_the_directories_of_its_subjects(tmp_path, convert) -> None:
    for subject in ("algebra", "geometry"):
        for split in ("train", "test"):
            row = {"problem": f"{subject} {split}", "level": "Level 1", "type": subject, "solution": "\\boxed{7}"}
            parquet(tmp_path / "math" / subject / f"{split}-00000-of-00001.parquet", [row])
    assert convert("math", "--from", str(tmp_path / "math"))[0] == 0
    assert [row[0] for row in written(tmp_path, "train")] == ["algebra train", "geometry train"]
    assert [row[0] for row in written(tmp_path, "heldout")] == ["algebra test", "geometry test"]


def test_dapo_loses_its_repetitions_and_the_seed_decides_what_is_held_out(tmp_path, convert) -> None:
    parquet(tmp_path / "dapo" / "data" / "dapo-math-17k.parquet", verl(*range(8), *range(8)))
    held_out = []
    for seed in ("0", "0", "1"):
        code, said = convert("dapo-math-17k", "--from", str(tmp_path / "dapo"), "--held-out", "3", "--seed", seed)
        assert code == 0
        assert "out/train.parquet: 5 rows\nout/heldout.parquet: 3 rows\nleft out: 8 rows" in said
        held_out.append(written(tmp_path, "heldout"))
        both = written(tmp_path, "train") + held_out[-1]
        assert sorted(both) == [(f"What is {n}?", str(n), "math_dapo") for n in range(8)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_more_held_out_prompts_than_there_are_is_refused(tmp_path, convert) -> None:
    parquet(tmp_path / "dapo.parquet", verl(1, 2, 3))
    code, said = convert("dapo-math-17k", "--from", str(tmp_path / "dapo.parquet"))
    assert code == 1
    assert said.startswith("--held-out = 256: the copy has 3 different prompts")
    assert not (tmp_path / "out").exists()


def test_aime_is_held_out_whatever_its_file_is_called(tmp_path, convert) -> None:
    parquet(tmp_path / "aime" / "train-00000-of-00001.parquet", [{"problem": "What?", "answer": "025", "year": "2024"}])
    assert convert("aime", "--from", str(tmp_path / "aime")) == (0, "out/heldout.parquet: 1 rows\n")
    assert written(tmp_path, "heldout") == [("What?", "25", "aime")]


def test_arithmetic_is_made_and_is_the_same_to_the_byte_each_time(tmp_path, convert) -> None:
    files = [tmp_path / "out" / f"{split}.parquet" for split in ("train", "heldout")]
    said, contents = [], []
    for seed in ("0", "0", "1"):
        said.append(convert("arithmetic", "--seed", seed))
        contents.append([file.read_bytes() for file in files])
    assert said[0] == (0, "out/train.parquet: 7592 rows\nout/heldout.parquet: 508 rows\n")
    assert contents[0] == contents[1] != contents[2]
    row = next(read_rows(DataSpec(train=[str(files[0])]), places("spec.data.train", [str(files[0])])))
    assert (eval(row.prompt.rstrip("=")), row.data_source) == (int(row.answer), "arithmetic")


def test_a_malformed_row_is_refused_by_file_and_row_and_nothing_is_written(tmp_path, convert) -> None:
    lines(tmp_path / "gsm8k" / "train.jsonl", [*questions("a", "b"), {"question": "c?", "answer": "3"}])
    code, said = convert("gsm8k", "--from", str(tmp_path / "gsm8k"))
    assert code == 1
    assert said.startswith("--from = gsm8k/train.jsonl row 3: column 'answer' is '3', without a number behind ####; ")
    assert not (tmp_path / "out").exists()


def drawing(colour: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (32, 32), colour).save(content, "PNG")
    return content.getvalue()


def drawn(problem: str, *pictures: bytes) -> dict:
    """A row as the library datasets stores it."""
    images = [{"bytes": picture, "path": "img_diagram.png"} for picture in pictures]
    return {"images": images, "problem": problem, "answer": "2 \\sqrt { 3 }"}


def test_problems_with_a_picture_keep_it_and_the_same_words_on_another_picture_are_another_problem(
    tmp_path, convert
) -> None:
    first, second = drawing(0), drawing(255)
    rows = [drawn("<image>Find x.", first), drawn("<image>Find x.", second), drawn("<image>Find x.", first)]
    parquet(tmp_path / "geometry" / "data" / "train-00000-of-00001.parquet", rows)
    for split in ("validation", "test"):
        parquet(tmp_path / "geometry" / "data" / f"{split}-00000-of-00001.parquet", [drawn(f"<image>{split}", first)])
    code, said = convert("geometry3k", "--from", str(tmp_path / "geometry"))
    assert code == 0
    assert said == "out/train.parquet: 2 rows\nout/heldout.parquet: 2 rows\nleft out: 1 rows that repeat a prompt\n"
    file = str(tmp_path / "out" / "train.parquet")
    rows = list(read_rows(DataSpec(train=[file], imageKey="images"), places("spec.data.train", [file])))
    assert [row.images for row in rows] == [(first,), (second,)]
    assert {(row.prompt[0]["content"].splitlines()[0], row.answer) for row in rows} == {
        ("<image>Find x.", "2 \\sqrt { 3 }")
    }


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (drawn("Find x.", b"png"), "the problem has 0 <image>, and the row 1 pictures"),
        (drawn("<image>Find x."), "the problem has 1 <image>, and the row 0 pictures"),
        ({"problem": "<image>Find x.", "answer": "3"}, "the problem has 1 <image>, and the row 0 pictures"),
        ({"problem": "<image>?", "answer": "3", "images": ["a.png"]}, "column 'images' holds 'a.png', without a"),
        (drawn("<image>Find x.", b""), "column 'images' holds {'bytes': b'', 'path': 'img_diagram.png'}, without a"),
    ],
)
def test_a_problem_without_its_picture_is_refused(tmp_path, convert, row: dict, rule: str) -> None:
    parquet(tmp_path / "train.parquet", [row])
    code, said = convert("geometry3k", "--from", str(tmp_path / "train.parquet"))
    assert (code, said.startswith(f"--from = train.parquet row 1: {rule}")) == (1, True), said


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (None, "--from = copy: does not exist; "),
        ("README.md", "--from = copy: holds no file that ends in .parquet, .arrow, .json, .jsonl; "),
        ("all.jsonl", "--from = copy/all.jsonl: its name says neither train nor validation nor test; "),
    ],
)
def test_a_copy_without_files_of_rows_is_refused(tmp_path, convert, file: str | None, said: str) -> None:
    if file:
        lines(tmp_path / "copy" / file, questions("a"))
    code, message = convert("gsm8k", "--from", str(tmp_path / "copy"))
    assert code == 1
    assert message.startswith(said)


def test_a_directory_that_cannot_be_made_is_one_message(tmp_path, convert) -> None:
    (tmp_path / "out").write_text("")
    code, said = convert("arithmetic")
    assert code == 1
    assert said.count("\n") == 1 and "out" in said
