"""The plugin as a package of its own, as one file, and what a release makes of it."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from kubectl_rljob import command_line

ROOT = Path(__file__).parents[2]
OWN = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = OWN["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
OTHERS = ("3.10", "3.11", "3.13")


def interpreter(version: str) -> str | None:
    """One that starts: a shim of pyenv may exist and not."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    works = (c for c in candidates if c and subprocess.run([c, "-c", ""], capture_output=True).returncode == 0)
    return next(map(str, works), None)


def test_every_module_is_python_that_the_oldest_one_reads() -> None:
    oldest = tuple(map(int, OWN["project"]["requires-python"].removeprefix(">=").split(".")))
    for package in PACKAGES:
        for file in (ROOT / "operator" / package).rglob("*.py"):
            ast.parse(file.read_text(), feature_version=oldest)


def test_it_has_the_version_the_commands_and_the_libraries_of_the_whole() -> None:
    own = OWN["project"]
    assert own["version"] == command_line.VERSION == WHOLE["version"]
    assert own["scripts"] == WHOLE["scripts"]
    assert sorted(own["dependencies"]) == sorted(WHOLE["dependencies"] + WHOLE["optional-dependencies"]["cli"])


def test_the_operators_image_has_what_the_operator_imports_and_the_one_file_what_the_plugin_does() -> None:
    dockerfile = (ROOT / "images/operator/Dockerfile").read_text()
    assert re.findall(r"^COPY operator/(\w*)/? ", dockerfile, re.MULTILINE) == [
        "rljob_api",
        "rljob_placement",
        "rljob_operator",
    ]
    built = runpy.run_path(str(ROOT / "images/plugin/build.py"))["PACKAGES"]
    assert sorted(built) == sorted(PACKAGES)


def test_only_the_verb_import_loads_the_tables_of_other_systems() -> None:
    code = "import sys, kubectl_rljob.__main__; print(*[m for m in sys.modules if m.startswith('rljob_import')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["rljob_import"]


def test_the_manifest_for_krew_names_what_the_release_builds() -> None:
    krew = yaml.safe_load((ROOT / "images/plugin/krew.yaml").read_text())["spec"]
    assert krew["version"] == f"v{WHOLE['version']}"
    workflow = (ROOT / ".github/workflows/release.yaml").read_text()
    for platform in krew["platforms"]:
        labels = platform["selector"]["matchLabels"]
        name = f"{labels['os']}-{labels['arch']}"
        assert platform["uri"].endswith(f"/v{WHOLE['version']}/kubectl-rljob-{name}.tar.gz")
        assert f"[{name}]=" in workflow


def test_the_release_builds_files_that_exist_and_its_shell_is_shell() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]
    for image in jobs["images"]["strategy"]["matrix"]["include"]:
        assert (ROOT / image["file"]).is_file()
    for script in [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    charts = {path.parent.name for path in (ROOT / "charts").glob("*/Chart.yaml")}
    assert f"for chart in {' '.join(sorted(charts))}; do" in str(jobs["charts"])


def test_one_file_says_so_where_it_cannot_unpack(tmp_path: Path) -> None:
    archive = tmp_path / "kubectl-rljob.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(ROOT / "images/plugin/start.py", "__main__.py")
        file.writestr("{}.{}/nothing.py".format(*sys.version_info), "")
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(archive)}
    result = subprocess.run([sys.executable, str(archive)], capture_output=True, text=True, env=environment)
    assert result.returncode == 1 and "Set XDG_CACHE_HOME" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.extra
@pytest.mark.slow
def test_one_file_runs_on_every_python_that_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "kubectl-rljob.pyz"
    subprocess.run([sys.executable, str(ROOT / "images/plugin/build.py"), str(file)], check=True, timeout=300)
    pythons = {version: found for version in OTHERS if (found := interpreter(version))}
    assert pythons, "no other Python is installed"
    command = ["plan", "-f", str(ROOT / "examples/arithmetic/rljob.yaml"), "--offline"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for python in [sys.executable, *pythons.values()]:
        result = subprocess.run([python, str(file), *command], capture_output=True, text=True, env=environment)
        assert (result.returncode, result.stderr) == (0, ""), python
        assert result.stdout.endswith("Valid.\n")
