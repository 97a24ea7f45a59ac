"""The commands of the page for people who come from Slurm and verl, as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_checkpoint, make_job, running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/slurm.md").read_text()
COMMANDS = re.findall(r"^kubectl rljob (.+)$", PAGE, re.MULTILINE)
SCRIPT = ROOT / "tests/importer/cases/verl/guide.sh"
MODEL = ROOT / "examples/qwen2.5-7b-gsm8k"
STREAMED = {"watch", "shell"}
"""Wait for a job's end or need kubectl; their options are compared with the plugin's own (`tests/repository/test_pages.py`)."""


def test_the_page_shows_commands_of_each_kind() -> None:
    assert {line.split()[0] for line in COMMANDS} >= {
        "import",
        "plan",
        "try",
        "status",
        "suspend",
        "resume",
        "logs",
        *STREAMED,
    }


def test_a_script_of_verl_is_imported_and_planned_by_the_commands_of_the_page(
    rljob: Rljob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of the page by its published config.json, which is in the repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_grpo.sh").write_text(SCRIPT.read_text())
    (importing,) = [line for line in COMMANDS if line.startswith("import ")]
    command, _, file = importing.partition(" > ")
    screen = rljob(*shlex.split(command))
    assert screen.code == 0, screen.err
    (tmp_path / file).write_text(screen.out)
    plans = [line for line in COMMANDS if line.startswith("plan ")]
    assert len(plans) == 2
    for line in plans:
        planned = rljob(*shlex.split(re.sub(r"--model \S+", "", line)), "--model", str(MODEL))
        assert (planned.code, planned.err) == (0, ""), line


OF_A_JOB = [line for line in COMMANDS if " NAME" in line and line.split()[0] not in STREAMED]


@pytest.mark.parametrize("line", [line for line in OF_A_JOB if "logs" not in line])
def test_a_command_for_a_job_answers(line: str, api: FakeApi, rljob: Rljob) -> None:
    kept = [make_checkpoint(100, 50), make_checkpoint(120, 12)]
    status = running() | ({"state": "Suspended", "suspended": True} if line == "resume NAME" else {})
    api.add(make_job(**status | {"checkpoint": {"kept": kept}}))
    screen = rljob(*shlex.split(line.replace("NAME", "demo")))
    assert screen.code == 0 and screen.out, screen.err
