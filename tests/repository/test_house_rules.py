"""What no tool checks by itself."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
SOURCES = [ROOT / f for f in TRACKED if f.endswith(".py") and (ROOT / f).is_file()]


def test_operator_is_a_source_root_and_not_a_package() -> None:
    """A package of that name would shadow the standard library's operator module."""
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_lock_file_names_a_package_registry() -> None:
    assert not (ROOT / "uv.lock").exists()
    for lock in [*ROOT.glob("images/*/*.txt"), *ROOT.glob("tests/*.txt")]:
        assert "://" not in lock.read_text(), lock


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(source: Path) -> None:
    text = source.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{node.name} at line {node.lineno}"
