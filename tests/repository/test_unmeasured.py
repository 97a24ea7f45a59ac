"""The queues of benchmarks that wait for GPUs: nobody finds a slip in it before a machine is there, for minutes."""

import re
import shlex
import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from benchmarks import families, guesses, step
from rljob_api.rules import exact, validate
from rljob_api.spec import RLJobSpec

REPOSITORY = Path(__file__).parents[2]
PLANS = ("unmeasured", "four_gpus", "eight_gpus")
RUNS = {
    f"{plan}/{name}": run["run"]
    for plan in PLANS
    for stage in yaml.safe_load((REPOSITORY / f"benchmarks/{plan}.yaml").read_text())
    for track in stage
    for name, run in track["runs"].items()
}


class Accepted(Exception):
    """The options of a command line, which its parser has read."""


@pytest.mark.parametrize("command", RUNS.values(), ids=RUNS)
def test_a_run_names_a_benchmark_that_accepts_its_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArgumentParser, "parse_args", accepted)
    for module, options in re.findall(r"-m (benchmarks\.\w+)([^;\"]*)", command):
        monkeypatch.setattr(sys, "argv", [module, *shlex.split(options)])
        with pytest.raises(Accepted):
            import_module(module).main()


def accepted(parser: ArgumentParser) -> None:
    known, unknown = parser.parse_known_args()
    assert not unknown
    raise Accepted(known)


@pytest.mark.parametrize("command", [run for run in RUNS.values() if "benchmarks.families" in run])
def test_the_models_and_jobs_of_families_are_valid(command: str, tmp_path: Path) -> None:
    kinds = re.findall(r"--kinds (\S+)", command)[0]
    for device in ("cpu", "gpu"):
        options = families.parser().parse_args(["--kinds", kinds, "--device", device])
        assert RLJobSpec.model_validate(families.job(tmp_path, options) | {"image": "none"})
    for kind in families.chosen(options):
        assert (families.write(tmp_path / kind, kind) / "config.json").exists()


@pytest.mark.parametrize("command", [run for run in RUNS.values() if "benchmarks.step" in run])
def test_the_rules_accept_the_job_of_a_step(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = step.parser().parse_args(shlex.split(command.split("benchmarks.step")[1].rstrip(";")))
    monkeypatch.setattr(exact, "DEVICES", ("cpu", "gpu"))  # as benchmarks.unproven does for `--exact`
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
