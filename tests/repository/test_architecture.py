"""The page of the architecture names every room, and what holds each of its statements: a test, or the contracts of pyproject.toml."""

import re
from collections.abc import Iterator

import pytest

from repository.pages import ROOT, TRACKED

PAGE = (ROOT / "docs/architecture.md").read_text()
LISTING, REST = PAGE.split("```")[1:]
STATEMENTS = REST.split("## How it is proven")[0].strip()
HOLDS = re.compile(r"`(?:tests|e2e)/[\w/]+(?:\.py)?`|`pyproject\.toml`")
PACKAGES = (
    "operator/rljob_api",
    "operator/rljob_operator",
    "operator/rljob_import",
    "operator/kubectl_rljob",
    "trainer/rljob_trainer",
)


def statements() -> Iterator[str]:
    """Paragraphs, items of lists and rows of tables, without headings and code."""
    for block in re.split(r"\n\n+", STATEMENTS):
        if block.startswith("|"):
            yield from block.splitlines()[2:]
        elif not block.startswith(("#", "    ")):
            yield from re.split(r"\n(?=- |\d\. )", block.strip())


@pytest.mark.parametrize("statement", statements(), ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_a_statement_names_what_holds_it(statement: str) -> None:
    assert HOLDS.search(statement), statement


def test_statements_are_found() -> None:
    """So the test before this one shows something."""
    assert len([*statements()]) > 40


@pytest.mark.parametrize("package", PACKAGES)
def test_the_listing_names_every_room_of_a_package(package: str) -> None:
    rooms = {file.split("/")[2] for file in TRACKED if file.startswith(f"{package}/") and file.count("/") > 2}
    assert {room for room in rooms if not re.search(rf"\b{room}/", LISTING)} == set()
