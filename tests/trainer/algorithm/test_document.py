"""docs/algorithms.md says what is there."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from api.specs import raw_spec
from rljob_api.rules import validate
from rljob_api.spec.algorithm import AlgorithmSpec

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/algorithms.md").read_text()
RECIPES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


@pytest.mark.parametrize(
    "recipe", RECIPES, ids=lambda r: f"{r['algorithm']['advantage']}-{r['algorithm'].get('loss', 'ppo')}"
)
def test_a_recipe_breaks_no_rule(recipe: dict[str, Any]) -> None:
    assert validate(raw_spec(**recipe), "job").violations == ()


def test_every_choice_is_explained() -> None:
    for field in ("advantage", "loss", "aggregation"):
        for choice in get_args(AlgorithmSpec.model_fields[field].annotation):
            assert f"| `{choice}` |" in TEXT


def test_every_pitfall_has_a_row_that_names_files_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    for path in re.findall(r"[\w/]+\.py", " ".join(where for _, where in rows)):
        assert (ROOT / "tests" / path).exists() or (ROOT / path).exists(), path
