"""The queue of benchmarks that wait for GPUs: nobody finds a slip in it before a machine is there, for minutes."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
RUNS = {
    name: run["run"]
    for stage in yaml.safe_load((REPOSITORY / "benchmarks/unmeasured.yaml").read_text())
    for track in stage
    for name, run in track["runs"].items()
}


@pytest.mark.parametrize("command", RUNS.values(), ids=RUNS)
def test_a_run_names_a_benchmark_and_options_that_exist(command: str) -> None:
    for module, options in re.findall(r"-m (benchmarks\.\w+)([^;\"]*)", command):
        source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text()
        for option in re.findall(r"(--[a-z-]+)", options):
            assert f'add_argument("{option}"' in source or f'add_argument(\n        "{option}"' in source, option


def test_each_name_is_given_once() -> None:
    text = (REPOSITORY / "benchmarks/unmeasured.yaml").read_text()
    assert len(re.findall(r"\{seconds:", text)) == len(RUNS)
