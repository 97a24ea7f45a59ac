"""From the text of a file to an RLJob and a report: what the verb `import` prints. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rljob_api import names
from rljob_api.rules import Violation, validate
from rljob_api.rules.fields import wrong_values
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import path_of
from rljob_api.yaml_text import documents
from rljob_import import Options
from rljob_import.engine import NAME, Imported, convert
from rljob_import.readers.hydra import UnreadableFile, document
from rljob_import.systems import SYSTEMS
from rljob_import.table import Note, Outcome, Problem

HEADINGS = {
    Outcome.LACKING: "Not expressible in an RLJob, and left out:",
    Outcome.CHANGED: "Changed or assumed:",
    Outcome.IMPLIED: "Implied, and left out:",
}
POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number to Kubernetes, and a text to YAML 1.1 where it lacks a dot or a sign."""
WIDEST = 200
"""Columns of a comment; a longer one is cut."""
ORDER = [field.alias for field in RLJobSpec.model_fields.values()]


@dataclass(frozen=True)
class Conversion:
    manifest: str
    """The commented RLJob; empty: there are problems."""
    report: str
    problems: tuple[Problem, ...] = ()
    valid: bool = True
    """Whether no rule is broken."""


def imported(system: str, text: str, file: str, options: Options) -> Conversion:
    """`file`: its name, for the heading. Raises Unreadable."""
    source = SYSTEMS[system].read(text, options.environment)
    job = convert(source.system, source.values, options)
    wrong = [*repeated(text), *job.problems]
    checked = validate(job.spec, job.name)
    if wrong:
        wrong += _further(job, source.values.keys())
    elif checked.spec is None:
        wrong = [_unfit(job, violation) for violation in checked.violations]
    if wrong:
        return Conversion("", report([*source.notes, *job.notes], ()), tuple(wrong), valid=False)
    manifest = write(job, f"Imported from {file} ({source.system.title}) by `kubectl rljob import {system}`")
    broken = checked.violations
    quiet = _quiet(job.quiet, source.system.title.split(",")[0])
    return Conversion(manifest, report([*source.notes, *job.notes], broken, quiet), valid=not broken)


def _quiet(number: int, title: str) -> str:
    """What is said of keys that need no field and no note."""
    if not number:
        return ""
    have, need = ("key has", "needs") if number == 1 else ("keys have", "need")
    return f"{number} {have} {title}'s default, or a value that changes nothing, and {need} no line."


def _further(job: Imported, keys: Iterable[str]) -> list[Problem]:
    """What is wrong in addition to other problems: values that fields have from one key each. All else may follow from those problems."""
    problems = [_unfit(job, violation) for violation in wrong_values(job.spec)]
    unfit = {problem.keys[0]: problem for problem in problems if len(problem.keys) == 1}
    reported = {key for problem in job.problems for key in problem.keys}
    return [unfit[key] for key in keys if key in unfit and key not in reported]


def _unfit(job: Imported, violation: Violation) -> Problem:
    """A value that its field cannot have, at the key that it comes from."""
    field = violation.field.removeprefix("spec.")
    around = [path for path in job.fields if re.match(rf"{re.escape(path)}(?![^.[])", field)]
    if not around:
        return Problem(violation.field, f"{violation.rule}; {violation.fix}")
    source = job.fields[max(around, key=len)]
    text = f"would be {violation.field} = {violation.value}, which {violation.rule}"
    return Problem(source.source, text, source.keys)


def report(notes: Iterable[Note], violations: Iterable[Violation], quiet: str = "") -> str:
    """What an import says on standard error: all notes by outcome, what matters most last, where a terminal ends. `quiet`: of all other keys."""
    given = [*notes]
    parts = [
        "\n".join(_section(heading, [n for n in given if n.outcome is o])) for o, heading in reversed(HEADINGS.items())
    ]
    parts.append(quiet)
    broken = [f"  {violation}" for violation in violations]
    if broken:
        parts.append("\n".join(["Broken rules, to be fixed before the job is applied:", *broken]))
    return "\n\n".join(filter(None, parts))


def _section(heading: str, notes: list[Note]) -> Iterator[str]:
    if notes:
        yield heading
        yield from (f"  {note.key}: {note.text}" for note in notes)


def problems(listed: Iterable[Problem]) -> str:
    """Everything that keeps a file from being imported."""
    return "\n".join(f"  {problem.key}: {problem.text}" for problem in listed)


def repeated(text: str) -> list[Problem]:
    """Keys that a YAML text has twice, of which readers take the last one. A script has none."""
    try:
        keys = [key for document in documents(text) for key in document.duplicates]
    except yaml.YAMLError:
        return []
    return [Problem(f"{path_of(key.location)} = {' and '.join(key.values)}", _repeated(*key.lines)) for key in keys]


def _repeated(first: int, second: int) -> str:
    return f"stands twice, in lines {first} and {second}; keep one of them"


def data_sets(text: str) -> dict[str, Any]:
    """LLaMA-Factory's data sets by name: JSON, which is YAML as well, or YAML. Raises Unreadable."""
    sets = document(text)
    if wrong := repeated(text):
        raise UnreadableFile(f"cannot be read:\n{problems(wrong)}")
    if not isinstance(sets, dict):
        raise UnreadableFile("holds no data sets by name")
    return sets


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes that Kubernetes would read as numbers."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", POWER, [*"-+.0123456789"])


def write(job: Imported, heading: str) -> str:
    """The manifest. `heading`: what it was made from."""
    comments = {path: field.source for path, field in job.fields.items()}
    lines = [
        f"# {heading}",
        f"apiVersion: {names.API_VERSION}",
        f"kind: {names.KIND}",
        "metadata:",
        _line(1, f"name: {flow(job.name)}", comments.get(NAME, "")),
        "spec:",
    ]
    spec = {key: job.spec[key] for key in sorted(job.spec, key=ORDER.index)}
    return "\n".join([*lines, *_object(spec, "", 1, comments)])


def _object(value: dict[str, Any], path: str, depth: int, comments: dict[str, str]) -> Iterator[str]:
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        if isinstance(inner, dict) and any(path.startswith(f"{here}.") for path in comments):
            yield _line(depth, f"{key}:", comments.get(here, ""))
            yield from _object(inner, here, depth + 1, comments)
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            yield _line(depth, f"{key}:", comments.get(here, ""))
            yield from (f"{'  ' * (depth + 1)}- {flow(item)}" for item in inner)
        else:
            yield _line(depth, f"{key}: {flow(inner)}", comments.get(here, ""))


def flow(value: Any) -> str:
    """On one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _line(depth: int, text: str, comment: str) -> str:
    comment = " ".join(comment.split())
    short = comment if len(comment) <= WIDEST else f"{comment[: WIDEST - 3]}..."
    return f"{'  ' * depth}{text}" + (f"  # {short}" if short else "")
