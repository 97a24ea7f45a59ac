"""The queues of benchmarks that wait for GPUs: nobody finds a slip in it before a machine is there, for minutes."""

import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import families, guesses, step
from rljob_api.rules import validate
from rljob_api.spec import RLJobSpec

REPOSITORY = Path(__file__).parents[2]
PLANS = ("unmeasured", "four_gpus", "eight_gpus")
WANTED = {
    f"{plan}/{name}": run
    for plan in PLANS
    for stage in yaml.safe_load((REPOSITORY / f"benchmarks/{plan}.yaml").read_text())
    for track in stage
    for name, run in track["runs"].items()
}
RUNS = {name: run["run"] for name, run in WANTED.items()}
SMALLEST = "python3 -m benchmarks.families --kinds qwen3_moe"
"""Of families, whether or not one of them waits."""
ENDING = 70
"""Seconds from the --limit of a benchmark until its job has ended and what it measured is written."""


class Accepted(Exception):
    """The options of a command line, which its parser has read."""


@pytest.mark.parametrize("command", RUNS.values(), ids=RUNS)
def test_a_run_names_a_benchmark_that_accepts_its_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_accepted(command, monkeypatch)


@pytest.mark.parametrize("run", WANTED.values(), ids=WANTED)
def test_a_benchmark_has_the_time_to_end_its_job_after_its_limit(
    run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in require_accepted(run["run"], monkeypatch):
        assert run["seconds"] >= getattr(options, "limit", 0) + ENDING


def require_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """The options of its benchmarks."""
    monkeypatch.setattr(ArgumentParser, "parse_args", accepted)
    found = []
    for module, options in re.findall(r"-m (benchmarks(?:\.\w+)+)([^;\"]*)", command):
        monkeypatch.setattr(sys, "argv", [module, *shlex.split(options)])
        with pytest.raises(Accepted) as read:
            import_module(module).main()
        found.append(read.value.args[0])
    return found


def accepted(parser: ArgumentParser) -> None:
    known, unknown = parser.parse_known_args()
    assert not unknown
    raise Accepted(known)


@pytest.mark.parametrize("command", [SMALLEST, *(run for run in RUNS.values() if "benchmarks.families" in run)])
def test_the_models_and_jobs_of_families_are_valid(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asked,) = require_accepted(command, monkeypatch)
    monkeypatch.undo()
    for device in ("cpu", "gpu"):
        options = families.parser().parse_args(["--kinds", asked.kinds, "--device", device])
        assert RLJobSpec.model_validate(families.job(tmp_path, options) | {"image": "none"})
    for kind in families.chosen(options):
        assert (families.write(tmp_path / kind, kind) / "config.json").exists()


@pytest.mark.parametrize("command", [run for run in RUNS.values() if "benchmarks.step" in run])
def test_the_rules_accept_the_job_of_a_step(command: str, tmp_path: Path) -> None:
    options = step.parser().parse_args(shlex.split(command.split("benchmarks.step")[1].rstrip(";")))
    assert not validate(step.job(options, tmp_path, tmp_path) | {"image": "none"}, "bench-step").violations


@pytest.mark.parametrize("method", guesses.METHODS)
def test_the_servers_of_guesses_have_models(method: str, tmp_path: Path) -> None:
    given = guesses.guessing(method, tmp_path)
    for device in ("cpu", "gpu"):
        spec = guesses.spec(guesses.model_for(method, tmp_path / device), device, given)
        assert spec.rollout.speculation and spec.rollout.speculation.method == method


@pytest.mark.parametrize("plan", PLANS)
def test_each_name_is_given_once(plan: str) -> None:
    text = (REPOSITORY / f"benchmarks/{plan}.yaml").read_text()
    assert len(re.findall(r"\{seconds:", text)) == sum(name.startswith(f"{plan}/") for name in RUNS)
