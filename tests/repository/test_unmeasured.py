"""The queues of benchmarks that wait for GPUs: nobody finds a slip in it before a machine is there, for minutes."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
PLANS = ("unmeasured", "four_gpus", "eight_gpus")
RUNS = {
    f"{plan}/{name}": run["run"]
    for plan in PLANS
    for stage in yaml.safe_load((REPOSITORY / f"benchmarks/{plan}.yaml").read_text())
    for track in stage
    for name, run in track["runs"].items()
}


@pytest.mark.parametrize("command", RUNS.values(), ids=RUNS)
def test_a_run_names_a_benchmark_and_options_that_exist(command: str) -> None:
    for module, options in re.findall(r"-m (benchmarks\.\w+)([^;\"]*)", command):
        source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text()
        for option in re.findall(r"(--[a-z-]+)", options):
            assert f'add_argument("{option}"' in source or f'add_argument(\n        "{option}"' in source, option


@pytest.mark.parametrize("plan", PLANS)
def test_each_name_is_given_once(plan: str) -> None:
    text = (REPOSITORY / f"benchmarks/{plan}.yaml").read_text()
    assert len(re.findall(r"\{seconds:", text)) == sum(name.startswith(f"{plan}/") for name in RUNS)
