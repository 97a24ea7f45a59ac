"""`python -m rljob_trainer fetch` as people call it."""

from pathlib import Path

import pytest

from rljob_trainer.__main__ import main
from trainer.sources.servers import Handler, serving


def test_what_was_fetched_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Handler, {"a/rows.jsonl": b"rows"}) as (url, _):
        assert main(["fetch", f"{url}/a/rows.jsonl", str(tmp_path / "set")]) == 0
    assert (tmp_path / "set/rows.jsonl").read_bytes() == b"rows"
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/set: 1 file of {url}/a/rows.jsonl\n"
    assert said.err == "", "progress is for a terminal"


def test_a_mistake_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "Qwen/Qwen3", str(tmp_path / "set")]) == 1
    assert capsys.readouterr().err == "Qwen/Qwen3: not the address of a source, for example hf://ORG/MODEL@REVISION\n"
    (tmp_path / "mine").touch()
    assert main(["fetch", "hf://org/model", str(tmp_path)]) == 1
    assert "it holds files that were not fetched (mine)" in capsys.readouterr().err
