"""The figures that outsiders read first are those of the recorded runs."""

from docs.pictures.performance import SITTINGS, steps, table
from repository.pages import ROOT


def test_the_comparison_has_the_figures_of_the_recorded_runs() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    assert [line for line in page.splitlines() if line.split(" | ")[0].startswith("| Qwen") and "verl" in line] == [
        line for line in table() if "verl" in line
    ]
    assert all(line in page for line in table())


def test_every_sitting_compares_programs_on_one_machine() -> None:
    for _, file, lease in SITTINGS:
        programs = [step.program for step in steps(file, lease)]
        assert programs[0] == "RLJob"
        assert len(programs) > 1, lease
