"""`make cluster-up`: a cluster on which jobs run."""

from pathlib import Path

import pytest

from e2e import stack
from e2e.kube import CommandFailed, Kube
from e2e.providers import Unavailable

ROOT = Path(__file__).parents[2]


class Provider:
    name, kubeconfig, tools = "fake", Path("/kubeconfig"), "/tools"
    operator_image = ""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def up(self) -> None:
        self.steps.append("cluster")

    def build_images(self) -> None:
        self.steps.append("images")
        self.operator_image = "registry:5000/operator:1e5"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def run(kube: Kube, *command: str, **_: object) -> str:
        found.append(" ".join(command))
        return ""

    monkeypatch.setattr(stack, "choose", lambda: Provider(found))
    monkeypatch.setattr(Kube, "run", run)
    return found


def test_the_target_does_what_its_line_of_help_says() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("cluster-up:"))
    assert lines[start].endswith("## Bring up the local cluster, with images and the operator")
    assert lines[start + 1] == "\t$(PY) -m e2e.stack"


def test_the_operator_is_installed_and_the_lines_for_a_shell_come_last(
    steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stack.main() == 0
    assert steps[:2] == ["cluster", "images"]
    assert steps[2].startswith("helm upgrade --install rljob ")
    assert "--set-string image.repository=registry:5000/operator --set-string image.tag=1e5" in steps[2]
    assert capsys.readouterr().out.splitlines()[-2] == "export KUBECONFIG=/kubeconfig"


@pytest.mark.parametrize("problem", [Unavailable("no cluster"), CommandFailed("helm: exit 1")])
def test_what_fails_is_said_without_a_traceback(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def choose() -> Provider:
        raise problem

    monkeypatch.setattr(stack, "choose", choose)
    assert stack.main() == 1
    assert capsys.readouterr().err == f"{problem}\n"
