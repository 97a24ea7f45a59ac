"""What an unknown field probably means: a typing error, a field of another section, or another system's name of a field."""

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from rljob_api.nearest import nearest
from rljob_api.validation.fields import Location, names_of, paths, section
from rljob_api.validation.other_words import ADVICE, WORDS

NEAR, NEARER = 0.75, 0.85
"""Similarity from which on a name of the same section, and any other name, is likely to be meant (difflib's ratio)."""
MOST = 3
"""Largest number of fields to choose from: with more, none is likely."""
GENERAL = ("name",)
"""Fields of list entries whose names say too little to be meant elsewhere."""
GANGS = ("critic", "reference", "rewards.model")
"""Sections of models that may have ranks of their own, with fields of the trainer's names."""


def _same(name: str) -> str:
    """Equal for names that differ in case, `_` and `-` only."""
    return name.lower().replace("_", "").replace("-", "")


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word, path in pairs:
        found.setdefault(_same(word), []).append(path)
    return found


def _other_gangs(path: str) -> list[str]:
    """The same field of other gangs, where it is one of the trainer's."""
    section, _, name = path.partition(".")
    return [field for gang in GANGS if section == "trainer" and (field := f"{gang}.{name}") in KNOWN]


KNOWN = frozenset(paths())
OF_OTHER_GANGS = frozenset(field for path in KNOWN for field in _other_gangs(path))
"""Seldom meant outside their own section."""
OURS = _index((name, path) for path in paths() if (name := path.rpartition(".")[2]) not in GENERAL)
THEIRS = _index(
    (word, field) for path, words in WORDS.items() for word in words.split() for field in [path, *_other_gangs(path)]
)
WORDS_OF_ALL = OURS.keys() | THEIRS.keys()
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
    if found := _elsewhere(word, fields):
        return found
    if near := nearest(word, own, NEAR):
        return Meant(f"did you mean {own[near]}?", [".".join([*fields, own[near]])])
    near = nearest(word, WORDS_OF_ALL, NEARER)
    known = _nearest(OURS.get(near) or THEIRS[near], fields) if near else []
    return Meant(f"did you mean {_list(known)}?", known) if known else Meant()


def _elsewhere(word: str, fields: list[str]) -> Meant | None:
    """The meaning of a name that is a field of another section, another system's name, or one that we have advice for."""
    ours, theirs = _nearest(OURS.get(word, []), fields), _nearest(THEIRS.get(word, []), fields)
    if word in HINTS and not (ours and _shared(ours[0], fields)):
        return Meant(HINTS[word])
    if ours and (not theirs or _shared(ours[0], fields) >= _shared(theirs[0], fields)):
        return Meant(f"it belongs to {_list(ours)}", ours)
    if theirs:
        return Meant(f"it is called {_list(theirs)} here", theirs)
    return None


def _nearest(among: list[str], section: list[str]) -> list[str]:
    """The fields that share most of their path with the section of the unknown field, and of these the least nested; none if they are too many."""
    places = {path: (-_shared(path, section), path in OF_OTHER_GANGS, path.count(".")) for path in among}
    best = [path for path in among if places[path] == min(places.values())]
    return best if len(best) <= MOST else []


def _shared(path: str, section: list[str]) -> int:
    """Sections that both are in."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(path.split("."), section, strict=False))))


def _list(paths: list[str]) -> str:
    return " or ".join(f"spec.{path}" for path in paths)
