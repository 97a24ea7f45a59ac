"""The reference page of `python -m rljob_trainer` is generated and up to date."""

from pathlib import Path

import pytest

from rljob_trainer import reference
from rljob_trainer.__main__ import parser

PAGE = Path(__file__).parents[2] / "docs/reference/trainer.md"
CONTAINERS = ["launch", "rollout", "pool", "worker", "gateway", "sandbox"]
"""What only pods and local runs start."""


def test_the_page_in_docs_is_what_the_parsers_say_in_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert PAGE.read_text() == reference.render()


def test_every_command_that_people_start_has_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    commands = [
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:5].strip() and line[:4] == "    "
    ]
    sections = [line[3:] for line in reference.render().split("\n") if line.startswith("## ")]
    assert sorted([*sections, *CONTAINERS]) == sorted(commands)


def test_a_command_of_the_plugin_is_said_to_be_one_of_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["plan", "job.yaml"])
    said = capsys.readouterr().err
    assert "invalid choice: 'plan'" in said and "kubectl-rljob plan" in said
