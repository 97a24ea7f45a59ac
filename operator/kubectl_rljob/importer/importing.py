"""From the text of a file to an RLJob and a report: what the verb `import` prints. Pure."""

from dataclasses import dataclass

from kubectl_rljob.importer import report
from kubectl_rljob.importer.engine import convert
from kubectl_rljob.importer.settings import Options
from kubectl_rljob.importer.systems import SYSTEMS
from kubectl_rljob.importer.table import Problem
from kubectl_rljob.importer.writer import write
from rljob_api.validation import validate


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
    if found.problems:
        return Result("", report.report([*source.notes, *found.notes], ()), tuple(found.problems), valid=False)
    checked = validate(found.spec, found.name)
    manifest = write(found, f"Imported from {file} ({source.system.title}) by `kubectl rljob import {system}`")
    return Result(manifest, report.report([*source.notes, *found.notes], checked.violations), valid=checked.valid)
