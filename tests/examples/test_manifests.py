"""Every manifest under examples/ is a job that nothing is wrong with."""

from pathlib import Path

import pytest
import yaml

from rljob_api.validate import violations

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*/rljob.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
def test_an_example_breaks_no_rule(path: Path) -> None:
    job = yaml.safe_load(path.read_text())
    assert violations(job["spec"], job["metadata"]["name"]) == []


def test_there_is_a_job_for_each_way_to_train() -> None:
    assert [path.parent.name for path in MANIFESTS] == ["arithmetic", "dapo", "moe", "ppo"]
