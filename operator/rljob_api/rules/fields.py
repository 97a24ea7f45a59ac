"""The fields of the spec by their paths, as users write them; and what is wrong with a spec that has not the schema of one: values of the wrong
type, missing fields, and unknown ones, which are typing errors, fields of another section, or another system's names."""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import ValidationError

from rljob_api.base import UNREADABLE, KubernetesObject, Model
from rljob_api.rules.engine import Violation
from rljob_api.rules.words import ADVICE, WORDS
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import EnvVar
from rljob_api.spec.model import RewardSpec
from rljob_api.text import nearest
from rljob_api.type_errors import SENTENCES, TypeProblem, as_written, path_of, problems

Location = Iterable[str | int]
"""Keys of objects and indices of lists, from the outermost one."""
REPORTED = 10
"""Violations of one object that Kubernetes defines, at most."""


def section(location: Location) -> tuple[list[str], type[Model] | None]:
    """The keys of a location that are fields of the spec, and the model of the last one's value, if it has one. Free keys, such as those of labels,
    and what is below them are no fields."""
    keys: list[str] = []
    model: type[Model] | None = RLJobSpec
    for key in location:
        if model is None or (isinstance(key, str) and key not in names_of(model)):
            break
        if isinstance(key, str):
            keys.append(key)
            model = names_of(model)[key]
    return keys, model


@cache
def names_of(model: type[Model]) -> Mapping[str, type[Model] | None]:
    """A model's fields by their YAML names, with the models of their values, or of the items of their lists."""
    return {str(field.alias): _held(field.annotation) for field in model.model_fields.values()}


def is_optional(model: type[Model], name: str) -> bool:
    """Whether the field, as it is written, is None unless it is written."""
    return any(field.alias == name and field.default is None for field in model.model_fields.values())


def paths(model: type[Model] = RLJobSpec, above: str = "") -> Iterator[str]:
    """Paths of all fields, without indices, such as `rewards.rule`."""
    for name, held in names_of(model).items():
        yield above + name
        if held:
            yield from paths(held, f"{above}{name}.")


def _held(annotation: Any) -> type[Model] | None:
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        return annotation
    return next(filter(None, map(_held, get_args(annotation))), None)


NEAR, NEARER = 0.75, 0.85
"""Similarity from which on a name of the same section, and any other name, is likely to be meant (difflib's ratio)."""
MOST_MEANT = 3
"""Largest number of fields to choose from: with more, none is likely."""
GENERAL = ("name",)
"""Names that say too little to be meant in another section."""
GANGS = ("critic", "reference", "rewards.model")
"""Sections of models that may have ranks of their own, with fields of the trainer's names."""


def _same(name: str) -> str:
    """Equal for names that differ in case, `_` and `-` only."""
    return name.lower().replace("_", "").replace("-", "")


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    by_word: dict[str, list[str]] = {}
    for word, path in pairs:
        among = by_word.setdefault(_same(word), [])
        among += [path] if path not in among else []
    return by_word


def _other_gangs(path: str) -> list[str]:
    """The same field of other gangs, where it is one of the trainer's."""
    section, _, name = path.partition(".")
    if section != "trainer":
        return []
    fields = (f"{gang}.{name}" for gang in GANGS)
    return [field for field in fields if field in KNOWN]


KNOWN = frozenset(paths())
OF_OTHER_GANGS = frozenset(field for path in KNOWN for field in _other_gangs(path))
SELDOM = OF_OTHER_GANGS | {path for path in KNOWN if path.startswith(("service.", "environments."))}
"""Seldom meant outside their own section."""
NAMED = [(path.rpartition(".")[2], path) for path in paths()]
OURS = _index((name, path) for name, path in NAMED if name not in GENERAL)
THEIRS = _index(
    (word, field) for path, words in WORDS.items() for word in words.split() for field in [path, *_other_gangs(path)]
)
WORDS_OF_ALL = (OURS.keys() | THEIRS.keys()) - {*GENERAL}
HINTS = {_same(word): fix for word, fix in ADVICE.items()}


class Meant(NamedTuple):
    """What to write in place of an unknown field."""

    fix: str = ""
    """Empty: nobody knows."""
    fields: list[str] = []
    """Those of ours, one of which it probably is."""


def meant(location: Location) -> Meant:
    """What to write in place of the unknown field at a location."""
    *keys, name = location
    fields, model = section(keys)
    word, own = _same(str(name)), {_same(known): known for known in names_of(model)} if model else {}
    if word in own:
        return Meant(f"write {own[word]}", [".".join([*fields, own[word]])])
    if there := _elsewhere(word, fields):
        return there
    if near := nearest(word, own, NEAR):
        return Meant(f"did you mean {own[near]}?", [".".join([*fields, own[near]])])
    near = nearest(word, WORDS_OF_ALL, NEARER)
    known = _nearest(OURS.get(near) or THEIRS[near], fields) if near else []
    return Meant(f"did you mean {_listed(known)}?", known) if known else Meant()


def _elsewhere(word: str, fields: list[str]) -> Meant | None:
    """The meaning of a name that is a field of another section, another system's name, or one that we have advice for."""
    known = THEIRS.get(word, [])
    if word in GENERAL:
        known = [path for path in known if path.split(".")[:-1] == fields]
    ours, theirs = _nearest(OURS.get(word, []), fields), _nearest(known, fields)
    if word in HINTS and not (ours and _shared(ours[0], fields)):
        return Meant(HINTS[word])
    if ours and (not theirs or _shared(ours[0], fields) >= _shared(theirs[0], fields)):
        return Meant(f"it belongs to {_listed(ours)}", ours)
    if theirs:
        return Meant(f"it is called {_listed(theirs)} here", theirs)
    return None


def _nearest(among: list[str], section: list[str]) -> list[str]:
    """The fields that share most of their path with the section of the unknown field, and of these the least nested; none if they are too many."""
    places = {path: (-_shared(path, section), path in SELDOM, path.count(".")) for path in among}
    best = [path for path in among if places[path] == min(places.values())]
    return best if len(best) <= MOST_MEANT else []


def _shared(path: str, section: list[str]) -> int:
    """Sections that both are in."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(path.split("."), section, strict=False))))


def _listed(paths: list[str]) -> str:
    return " or ".join(f"spec.{path}" for path in paths)


def schema_violations(error: ValidationError, most: int) -> tuple[list[Violation], set[str]]:
    """Violations of a spec that could not be parsed, in the order of its fields, `most` of them at most; and the fields that unknown ones probably
    stand for. A missing field that seems to be there under another name is not reported."""
    wrong = problems(error, most)
    unknown = {problem.location: meant(problem.location) for problem in wrong if problem.kind == "extra_forbidden"}
    renamed = {field for known in unknown.values() for field in known.fields}
    reported = (problem for problem in wrong if problem.kind != "missing" or problem.path not in renamed)
    return [_violation(problem, unknown.get(problem.location, Meant(problem.fix)).fix) for problem in reported], renamed


def wrong_values(spec: dict[str, Any]) -> list[Violation]:
    """Values of the wrong type in a spec of which parts are still missing."""
    try:
        RLJobSpec.model_validate(spec, by_alias=True, by_name=False)
    except ValidationError as error:
        return [_violation(problem, problem.fix) for problem in problems(error) if problem.kind != "missing"]
    return []


def kubernetes_violations(
    at: str, kind: type[KubernetesObject], given: object, explained: str, tags: Collection[str] = ()
) -> Iterator[Violation]:
    """What is wrong with an object at a field that Kubernetes defines. `explained`: the field of a Pod. `tags`: of unions, which pydantic puts into
    locations."""
    try:
        kind.model_validate(given, by_alias=True, by_name=False)
    except ValidationError as error:
        for problem in problems(error, REPORTED):
            path = path_of(part for part in problem.location if part not in tags)
            fix = problem.fix or f"see `kubectl explain pod.spec.{explained}`"
            yield Violation(f"{at}.{path}" if path else at, problem.value, problem.rule, fix)


def without(spec: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """A copy of the spec in which those of `fields` that it does not have are UNREADABLE, in place of their defaults."""
    for field in fields:
        spec = _unreadable(spec, RLJobSpec, field.split("."))
    return spec


def _unreadable(given: dict[str, Any], model: type[Model], keys: list[str]) -> dict[str, Any]:
    """An optional section that is not written is unreadable as a whole: nobody knows whether it is meant. Lists stay as they are: nobody knows
    which entry is meant."""
    key, *below = keys
    value, held = given.get(key), names_of(model)[key]
    if value is None:
        value = {} if below and not is_optional(model, key) else UNREADABLE
    if below and held and isinstance(value, dict):
        value = _unreadable(value, held, below)
    return given | {key: value}


def verbatim_violations(spec: dict[str, Any], broken: set[str]) -> Iterator[Violation]:
    """What JSON cannot hold, in the parts of a spec that pass through as they are. `broken`: fields that are wrong already."""
    for location, value in leaves(spec):
        if isinstance(value, float) and not math.isfinite(value):
            field = f"spec.{path_of(location)}"
            if field not in broken:
                yield Violation(field, as_written(value), *SENTENCES["finite_number"](value, {}))


def leaves(spec: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Values that are neither objects nor lists, in their order."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), spec)]
    while waiting:
        location, value = waiting.pop()
        if isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*location, key), below) for key, below in inner])
        else:
            yield location, value


def _violation(problem: TypeProblem, fix: str) -> Violation:
    """`fix`: empty: the documentation of the field says more."""
    meant = _shorthand(problem) or ("" if _lacks_objects(problem) else fix)
    return Violation(f"spec.{problem.path}", problem.value, problem.rule, meant or described(problem.location))


RULES = get_args(get_args(RewardSpec.model_fields["rule"].annotation)[0])
OBJECTS = ("dict_type", "model_type", "model_attributes_type")


def _lacks_objects(problem: TypeProblem) -> bool:
    """Whether a list of objects is something else: what is there cannot be an item of it."""
    *above, name = problem.location
    if problem.kind != "list_type":
        return False
    model = section(above)[1]
    return model is not None and any(f.alias == name and _of_objects(f.annotation) for f in model.model_fields.values())


def _of_objects(annotation: Any) -> bool:
    is_section = inspect.isclass(annotation) and issubclass(annotation, Model)
    return is_section or get_origin(annotation) is dict or any(map(_of_objects, get_args(annotation)))


def _shorthand(problem: TypeProblem) -> str:
    """What to write in place of a text that stands for an object, or for a list of one: the object has one field that it may be."""
    model = section(problem.location)[1]
    if model is EnvVar and problem.kind == "list_type":
        return "write [{name: NAME, value: VALUE}], with an entry for each variable"
    if model is None or problem.kind not in (*OBJECTS, "list_type") or not problem.value.startswith('"'):
        return ""
    written = _as_reward(problem.value) if model is RewardSpec else _as_required(model, problem.value)
    return f"write {f'[{written}]' if problem.kind == 'list_type' else written}" if written else ""


def _as_reward(text: str) -> str:
    name = text.strip('"')
    if name in RULES:
        return f"{{rule: {name}}}"
    return f"{{python: {{path: {text}}}}}" if name.endswith(".py") else ""


def _as_required(model: type[Model], text: str) -> str:
    """With the text as the value of the one field that the object has to have."""
    required = [str(field.alias) for field in model.model_fields.values() if field.is_required()]
    return f"{{{required[0]}: {text}}}" if len(required) == 1 else ""


def described(location: Location) -> str:
    """Where the field at a location is explained, or the innermost one around it: under a heading of the page, and by kubectl."""
    fields, _ = section(location)
    return f"see {_heading(fields)} in docs/reference/api.md, or `kubectl explain {'.'.join(['rljob.spec', *fields])}`"


def _heading(fields: Iterable[str]) -> str:
    """Of the innermost section, for example `spec.rewards[].python`."""
    model: type[Model] = RLJobSpec
    heading = "spec"
    for name in fields:
        held = names_of(model)[name]
        if held is None:
            break
        several = any(f.alias == name and _is_list(f.annotation) for f in model.model_fields.values())
        model, heading = held, f"{heading}.{name}{'[]' * several}"
    return heading


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))
