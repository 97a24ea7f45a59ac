"""From a configuration and its system's table to the parts of an RLJob."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from rljob_api.base import Model
from rljob_api.rules.advice import on_purpose
from rljob_api.spec import RLJobSpec
from rljob_import import Options
from rljob_import.settings import REFUSED, Given, NotANumber, Settings, SettingsRule, System, said_of_rows, show
from rljob_import.table import Field, Note, Outcome, Problem, Said, same_value

NAME = "metadata.name"
MOST_NAMED = 3
"""Fields of one key."""
UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What computing with a value raises that has another type, or is out of all bounds."""


@dataclass
class Imported:
    """What came of a configuration."""

    name: str = "imported"
    spec: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    """By dotted path: where a value comes from."""
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Why there is no RLJob; empty: there is one."""
    quiet: int = 0
    """Keys of the file of which nothing is said: their value is the default, or says nothing."""


@dataclass(frozen=True)
class Answer:
    """What a rule says, and the keys that it asked for."""

    rule: SettingsRule
    said: tuple[Said, ...]
    looked_at: frozenset[str]

    @staticmethod
    def of(rule: SettingsRule, settings: Settings) -> "Answer":
        settings.looked_at.clear()
        said = tuple(said_by(rule, settings))
        return Answer(rule, said, frozenset(settings.looked_at))


def convert(system: System, values: Mapping[str, Any], options: Options) -> Imported:
    """`values`: leaves by dotted path. Everything that is wrong comes back at once."""
    settings = Settings.of(system, values, options)
    answers = [Answer.of(rule, settings) for rule in (said_of_rows, *system.rules)]
    imported = _imported(settings, answers)
    said: list[Said] = [*imported.fields.values(), *imported.notes, *imported.problems]
    for key, given in settings.unsaid({name for one in said for name in one.keys}):
        others = Settings.of(system, {name: value for name, value in values.items() if name != given.name}, options)
        without = [Answer.of(one.rule, others) if key in one.looked_at else one for one in answers]
        imported.notes.append(
            given.note(Outcome.IMPLIED, _unsaid(given, _difference(imported, _imported(others, without))))
        )
    said = [*imported.fields.values(), *imported.notes, *imported.problems]
    imported.quiet = len(
        {given.name for given in settings.given.values()} - {name for one in said for name in one.keys}
    )
    imported.notes = list(dict.fromkeys(imported.notes))
    imported.problems = list(dict.fromkeys(imported.problems))
    return imported


def _imported(settings: Settings, answers: Iterable[Answer]) -> Imported:
    imported = Imported(notes=[*settings.notes], problems=[*settings.problems])
    for said in _of_sections_read((said for answer in answers for said in answer.said), unread(settings)):
        _take(imported, said)
    _say_what_is_never_due(imported)
    _say_what_has_another_value(imported, settings)
    return imported


def _say_what_has_another_value(imported: Imported, settings: Settings) -> None:
    """In place of a note that a field has a key's value already, where it has another one. A job without the field's section has neither."""
    claimed = {given.name: given for given in settings.given.values() if given.row.equals}
    absent = tuple(f"{section}." for section in unread(settings)) if claimed else ()
    values = dict(_leaves(imported.spec)) if claimed else {}
    for i, note in enumerate(imported.notes):
        given = claimed.get(*note.keys) if len(note.keys) == 1 and note.outcome is Outcome.IMPLIED else None
        if given and not given.row.equals.startswith(absent):
            ours = values.get(given.row.equals, default_of(given.row.equals))
            if not same_value(ours, given.value):
                imported.notes[i] = given.note(Outcome.CHANGED, f"{given.row.equals} is {show(ours)}")


def _say_what_is_never_due(imported: Imported) -> None:
    """An interval longer than the run is written as what it does, so that it is no mistake to who reads the job."""
    steps = imported.spec.get("train", {}).get("steps")
    if not isinstance(steps, int) or steps < 1:
        return
    for path, instead in on_purpose(steps).items():
        said = imported.fields.get(path)
        if said and isinstance(said.value, int) and said.value > steps:
            what = "only at the end" if path.startswith("checkpoint.") else "before the first and after the last"
            source = f"{said.source}: {said.value} is above the {steps} steps, so {what}"
            imported.fields[path] = replace(said, value=instead, source=source)
            _put(imported.spec, path.split("."), instead)


def _unsaid(given: Given, difference: str) -> str:
    """With what the table says of a key that has no field: that it changes nothing here need not mean that it changes nothing there."""
    return "; ".join(filter(None, ("" if given.row.field else given.row.text, difference)))


def _difference(given: Imported, without: Imported) -> str:
    """Fields that have another value without a key."""
    here, there = dict(_leaves(given.spec)), dict(_leaves(without.spec))
    changed = [path for path in dict.fromkeys((*here, *there)) if here.get(path) != there.get(path)]
    if changed:
        return f"decides about {', '.join(changed[:MOST_NAMED])}{', ...' if changed[MOST_NAMED:] else ''}"
    same = given.name == without.name and given.problems == without.problems
    return "the job is the same without it" if same else "decides how other keys are read"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _of_sections_read(said: Iterable[Said], others: Mapping[str, str]) -> Iterator[Said]:
    """A field of a section that the job does not have becomes a note, if the file gives it."""
    for one in said:
        section = next((s for s in others if isinstance(one, Field) and f"{one.path}.".startswith(f"{s}.")), None)
        if section is None or not isinstance(one, Field):
            yield one
        elif not one.assumed:
            yield Note(Outcome.IMPLIED, one.source, others[section], one.keys)


def _take(imported: Imported, said: Said) -> None:
    if isinstance(said, Note):
        imported.notes.append(said)
    elif isinstance(said, Problem):
        imported.problems.append(said)
    elif said.path == NAME:
        imported.name, imported.fields[NAME] = said.value, said
    elif said.value is not None and not (said.assumed and said.value == default_of(said.path)):
        _put(imported.spec, said.path.split("."), said.value)
        imported.fields[said.path] = said


def _put(spec: dict[str, Any], parts: list[str], value: Any) -> None:
    for part in parts[:-1]:
        spec = spec.setdefault(part, {})
    if value != {}:
        spec[parts[-1]] = value
    else:
        spec.setdefault(parts[-1], value)


def default_of(path: str) -> Any:
    """Of a field of the spec that is not written; None: it has no default."""
    section: type[Model] | None = RLJobSpec
    default: Any = None
    for part in path.split("."):
        fields = {field.alias: field for field in section.model_fields.values()} if section else {}
        if part not in fields:
            return None
        section, default = _section(fields[part].annotation), fields[part].default
    return None if default is PydanticUndefined else default


def _section(annotation: Any) -> type[Model] | None:
    """The model that a field holds; None: it holds none."""
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Model)), None)


def said_by(rule: SettingsRule, settings: Settings) -> Iterator[Said]:
    """What a rule says, up to a value that it cannot compute with, and further such values."""
    wrong: Given | None
    try:
        yield from rule(settings)
        return
    except NotANumber as error:
        wrong = settings.given.get(error.key)
        yield settings.problem(str(error), error.key)
    except UNFIT:
        wrong = _culprit(lambda these: [*rule(these)], settings)
        if wrong is None:
            raise
        yield refused(wrong.name, wrong.value)
    if wrong:
        yield from _of_other_values(rule, _without(settings, [wrong]))


def _of_other_values(rule: SettingsRule, settings: Settings) -> Iterator[Problem]:
    """Only what is wrong with keys of the file: what else the rule says follows from the key that is left out."""
    names = {given.name for given in settings.given.values()}
    yield from (said for said in said_by(rule, settings) if isinstance(said, Problem) and said.key in names)


def unread(settings: Settings) -> dict[str, str]:
    """Sections that the job does not have; of values that no rule can compute with, none."""
    try:
        return settings.system.unread(settings)
    except UNFIT:
        if _culprit(settings.system.unread, settings) is None:
            raise
        return {}


def refused(name: str, value: Any) -> Problem:
    return Problem(name, f"{show(value)} {REFUSED}", (name,))


def _culprit(compute: Callable[[Settings], object], settings: Settings) -> Given | None:
    """The key without which it can be computed: the oddest that suffices alone, else the last of several. None: it is no key of the file."""
    given = sorted(settings.given.values(), key=_plainness)
    alone = (one for one in given if _computes(compute, settings, (one,)))
    together = (one for i, one in enumerate(given) if _computes(compute, settings, given[: i + 1]))
    return next(chain(alone, together), None)


def _computes(compute: Callable[[Settings], object], settings: Settings, without: Iterable[Given]) -> bool:
    try:
        compute(_without(settings, without))
    except NotANumber:
        return True
    except UNFIT:
        return False
    return True


def _without(settings: Settings, dropped: Iterable[Given]) -> Settings:
    names = {one.name for one in dropped}
    return replace(settings, given={k: g for k, g in settings.given.items() if g.name not in names})


def _plainness(given: Given) -> int:
    """Most failures come of a list or a mapping in place of one value, then of nothing and zero."""
    return 0 if isinstance(given.value, list | dict) else 2 if given.value else 1
