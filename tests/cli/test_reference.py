"""The reference page is generated and up to date; the plugin speaks for itself."""

from pathlib import Path

import pytest

from kubectl_rljob import command_line, reference
from kubectl_rljob.__main__ import main
from kubectl_rljob.command_line import VERBS
from rljob_api import names

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_page_in_docs_is_what_the_parsers_say() -> None:
    assert PAGE.read_text() == reference.render()


def test_every_verb_has_a_section_and_every_flag_a_meaning() -> None:
    text = reference.render()
    assert [line[3:] for line in text.split("\n") if line.startswith("## ")] == [
        "Global flags",
        *(verb.name for verb in VERBS),
    ]
    assert "None" not in text


def test_version_names_the_api_and_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    said = f"kubectl-rljob {command_line.VERSION} (API {names.API_VERSION}, protocol {names.PROTOCOL})\n"
    assert capsys.readouterr().out == said
