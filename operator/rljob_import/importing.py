"""From the text of a file to an RLJob and a report: what the verb `import` prints. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.validation import Violation, validate
from rljob_api.validation.schema_errors import wrong_values
from rljob_import.engine import Imported, convert
from rljob_import.options import Options
from rljob_import.sources import Unreadable, document, repeated
from rljob_import.systems import SYSTEMS
from rljob_import.table import Note, Outcome, Problem
from rljob_import.writer import write

HEADINGS = {
    Outcome.LACKING: "Not expressible in an RLJob, and left out:",
    Outcome.CHANGED: "Changed or assumed:",
    Outcome.IMPLIED: "Implied, and left out:",
}


@dataclass(frozen=True)
class Result:
    manifest: str
    """The commented RLJob; empty: there are problems."""
    report: str
    problems: tuple[Problem, ...] = ()
    valid: bool = True
    """Whether no rule is broken."""


def imported(system: str, text: str, file: str, options: Options) -> Result:
    """`file`: its name, for the heading. Raises Unreadable."""
    source = SYSTEMS[system].read(text, options.environment)
    found = convert(source.system, source.values, options)
    wrong = [*repeated(text), *found.problems]
    checked = validate(found.spec, found.name)
    if wrong:
        wrong += _further(found, source.values.keys())
    elif checked.spec is None:
        wrong = [_unfit(found, violation) for violation in checked.violations]
    if wrong:
        return Result("", report([*source.notes, *found.notes], ()), tuple(wrong), valid=False)
    manifest = write(found, f"Imported from {file} ({source.system.title}) by `kubectl rljob import {system}`")
    return Result(manifest, report([*source.notes, *found.notes], checked.violations), valid=checked.valid)


def _further(found: Imported, keys: Iterable[str]) -> list[Problem]:
    """What is wrong in addition to other problems: values that fields have from one key each. All else may follow from those problems."""
    unfit = {problem.key.split(" = ")[0]: problem for problem in (_unfit(found, v) for v in wrong_values(found.spec))}
    reported = {problem.key for problem in found.problems}
    return [unfit[key] for key in keys if key in unfit and key not in reported]


def _unfit(found: Imported, violation: Violation) -> Problem:
    """A value that its field cannot have, at the key that it comes from."""
    field = violation.field.removeprefix("spec.")
    around = [path for path in found.comments if re.match(rf"{re.escape(path)}(?![^.[])", field)]
    if not around:
        return Problem(violation.field, f"{violation.rule}; {violation.fix}")
    source = found.comments[max(around, key=len)]
    return Problem(source, f"would be {violation.field} = {violation.value}, which {violation.rule}")


def report(notes: Iterable[Note], violations: Iterable[Violation]) -> str:
    """What an import says on standard error: all notes by outcome, what matters most last, where a terminal ends."""
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


def data_sets(text: str) -> dict[str, Any]:
    """LLaMA-Factory's data sets by name: JSON, which is YAML as well, or YAML. Raises Unreadable."""
    found = document(text)
    if wrong := repeated(text):
        raise Unreadable(f"cannot be read:\n{problems(wrong)}")
    if not isinstance(found, dict):
        raise Unreadable("holds no data sets by name")
    return found
