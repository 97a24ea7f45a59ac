"""Nothing is wrong with the jobs under examples/."""

from pathlib import Path

import pytest
import yaml

from rljob_api import names
from rljob_api.validation import validate

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_breaks_no_rule(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        if found["kind"] == names.KIND:
            assert validate(found["spec"], found["metadata"]["name"]).violations == ()


def test_there_is_a_job_for_each_way_to_train() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/rljob.yaml")) == ["arithmetic", "dapo", "moe", "ppo"]
