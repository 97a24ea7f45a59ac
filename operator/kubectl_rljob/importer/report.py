"""What an import says on standard error. Pure."""

from collections.abc import Iterable, Iterator

from kubectl_rljob.importer.table import Note, Outcome, Problem
from rljob_api.validation import Violation

HEADINGS = {
    Outcome.LACKING: "Not expressible in an RLJob, and left out:",
    Outcome.CHANGED: "Changed or assumed:",
    Outcome.IMPLIED: "Implied, and left out:",
}


def report(notes: Iterable[Note], violations: Iterable[Violation]) -> str:
    """All notes by outcome, what matters most last, where a terminal ends."""
    given = [*notes]
    parts = [
        "\n".join(_section(heading, [n for n in given if n.outcome is o])) for o, heading in reversed(HEADINGS.items())
    ]
    broken = [f"  {violation}" for violation in violations]
    if broken:
        parts.append("\n".join(["Broken rules, to be fixed before the job is applied:", *broken]))
    return "\n\n".join(filter(None, parts))


def _section(heading: str, notes: list[Note]) -> Iterator[str]:
    if notes:
        yield heading
        yield from (f"  {note.key}: {note.text}" for note in notes)


def problems(found: Iterable[Problem]) -> str:
    """Everything that keeps a file from being imported."""
    return "\n".join(f"  {problem.key}: {problem.text}" for problem in found)
