"""Every row of `plan`'s tables of memory adds up as it is shown, and equal bytes are equal numbers."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_rljob import gib
from kubectl_rljob.__main__ import main
from rljob_api.sizing.devices import GIB

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = [
    f
    for f in sorted(EXAMPLES.glob("*/*.yaml"))
    if (f.parent / "config.json").exists() and "kind: RLJob\n" in f.read_text()
]


def tenths(cell: str) -> int:
    return 0 if cell == "-" else round(float(cell) * 10)


@given(parts=st.lists(st.integers(0, 2000 * GIB), min_size=1, max_size=7))
def test_what_is_shown_is_near_and_adds_up(parts: list[int]) -> None:
    *shown, total = map(tenths, gib.row(parts))
    assert sum(shown) == total
    assert all(abs(one - part / GIB * 10) <= 0.51 for one, part in zip(shown, parts, strict=True))


@pytest.mark.parametrize("recipe", RECIPES, ids=[str(f.relative_to(EXAMPLES)) for f in RECIPES])
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_every_row_of_a_recipe_adds_up(recipe: Path, gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "-f", str(recipe), "--model", str(recipe.parent), "--gpu", gpu, "--offline"])
    page = capsys.readouterr().out
    tables = [
        block.splitlines() for block in page.split("\n\n") if block.startswith(("GIB PER GPU", "TRAINER, BY PHASE"))
    ]
    rows = [line.split() for table in tables for line in table[1:] if not line.startswith("GiB per GPU")]
    assert len(rows) >= 5 and sum("trainer" in table[0].lower() for table in tables) == 1
    for name, *cells, total in rows:
        assert sum(map(tenths, cells)) == tenths(total), name
    assert len({name for name, *_ in rows}) == len(rows), "no GPU is in two tables"


@pytest.mark.parametrize("recipe", RECIPES, ids=[str(f.relative_to(EXAMPLES)) for f in RECIPES])
def test_equal_bytes_are_shown_as_equal_numbers(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In all rows of the table, and in the line about the host."""
    given = ["plan", "-f", str(recipe), "--model", str(recipe.parent), "--gpu", "h100", "--offline"]
    main(given)
    header, *rows = capsys.readouterr().out.partition("TRAINER, BY PHASE")[2].splitlines()
    main([*given, "-o", "json"])
    (found,) = json.loads(capsys.readouterr().out)
    shown = defaultdict[int, set[str]](set)
    for name, *cells in (row.split() for row in rows[: len(found["phases"])]):
        for part, cell in zip(header.split(), cells, strict=False):
            shown[found["phases"][name].get(part.lower(), -1)].add(cell)
    shown.pop(-1)
    assert len(shown) > 4 and all(len(numbers) == 1 for numbers in shown.values()), shown
