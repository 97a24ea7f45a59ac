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
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy
import pytest
import yaml

from kubectl_rljob import command_line

ROOT = Path(__file__).parents[2]
OWN = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = OWN["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
OTHERS = ("3.10", "3.11", "3.13")
OLDEST = tuple(map(int, OWN["project"]["requires-python"].removeprefix(">=").split(".")))
MODULES = [path for package in PACKAGES for path in (ROOT / "operator" / package).rglob("*.py")]
STUBS = Path(mypy.__file__).parent / "typeshed/stdlib"


def interpreter(version: str) -> str | None:
    """One that starts: a shim of pyenv may exist and not."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    works = (c for c in candidates if c and subprocess.run([c, "-c", ""], capture_output=True).returncode == 0)
    return next(map(str, works), None)


def test_every_module_is_python_that_the_oldest_one_reads() -> None:
    for file in MODULES:
        ast.parse(file.read_text(), feature_version=OLDEST)


def defined(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements of a stub define in the oldest Python."""
    for statement in statements:
        match statement:
            case ast.If(test=test, body=body, orelse=other):
                there = eval(ast.unparse(test), {"sys": SimpleNamespace(version_info=OLDEST, platform="linux")})
                yield from defined(body if there else other)
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")]):
                yield from names_of(module)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


@cache
def names_of(module: str) -> frozenset[str]:
    """What a module of the standard library has in the oldest Python, by mypy's stubs; empty: it has no such module."""
    since = re.search(rf"^{re.escape(module)}: 3\.(\d+)-", (STUBS / "VERSIONS").read_text(), re.MULTILINE)
    if since and int(since[1]) > OLDEST[1]:
        return frozenset()
    path = STUBS.joinpath(*module.split("."))
    file = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    inside = {inner.stem for inner in path.glob("*.pyi")}
    return frozenset({"__name__", *inside, *defined(ast.parse(file.read_text()).body)})


def taken(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules of the standard library, and what is taken from them."""
    imported = dict[str, str]()
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                imported |= {alias.asname or alias.name: alias.name for alias in names}
            case ast.ImportFrom(module=str(name), names=names):
                yield from ((name, alias.name) for alias in names)
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in imported:
                yield imported[name], attribute


def test_no_module_takes_from_the_standard_library_what_the_oldest_python_lacks() -> None:
    uses = {(file, *use) for file in MODULES for use in taken(ast.parse(file.read_text()))}
    ours = {(file, name, what) for file, name, what in uses if name.partition(".")[0] in sys.stdlib_module_names}
    assert len(ours) > 500
    assert [use for use in ours if use[2] not in names_of(use[1])] == []
    assert "batched" not in names_of("itertools") and not names_of("tomllib"), "of later ones"


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
