"""A running API, a kubeconfig for it, and the plugin's main as a call that returns what was printed."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cli.fake_api import FakeApi, serving
from cli.makers import NOW
from kubectl_rljob.__main__ import main


@dataclass(frozen=True)
class Screen:
    code: int
    out: str
    err: str


Rljob = Callable[..., Screen]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    api = FakeApi()
    contexts = [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "research"}},
        {"name": "elsewhere", "context": {"cluster": "c", "user": "u"}},
    ]
    with serving(api) as url:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": contexts,
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        yield api


@pytest.fixture
def rljob(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Rljob:
    """`rljob("status", "demo")` with the kubeconfig of `api`."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    def run(*argv: str) -> Screen:
        try:
            code = main([*argv], NOW)
        except SystemExit as exit:
            code = int(exit.code or 0)
        out, err = capfdbinary.readouterr()
        return Screen(code, out.decode(), err.decode())

    return run


KUBECTL = """\
#!/bin/sh
# Runs on this machine what it is asked to run in a pod, and notes where that was to be.
for argument; do shift; [ "$argument" = -- ] && break; echo "$argument" >> "$NOTES"; done
exec "$@"
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A `kubectl` whose pods are this machine; the call returns the arguments that it got so far, without the commands."""
    directory, notes = tmp_path / "bin", tmp_path / "notes"
    directory.mkdir()
    notes.touch()
    (directory / "kubectl").write_text(KUBECTL)
    (directory / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(notes))
    return lambda: notes.read_text().splitlines()
