"""Files that a configuration builds on, by Hydra's `defaults` and `--config-name`. What they set counts in the other system and is in no text that
is read here, so that those that do not hold the system's own defaults are named."""

import re
from collections.abc import Iterator
from typing import Any

from rljob_import.settings import Settings, SettingsRule
from rljob_import.table import Note, Outcome, Problem, Said

CONFIG_NAME = "--config-name"
BASES = ("defaults", CONFIG_NAME)
SELF, NONE = "_self_", (None, "null", "")
MISSING = (
    "settings of this file count too, and are not here: write them into this one, or import what `--cfg job` behind "
    "the launch command prints (or --allow {})"
)


def foreign_bases(own: re.Pattern[str]) -> SettingsRule:
    """A rule that refuses bases whose names are not `own`, those of files with nothing but the system's defaults."""

    def rule(settings: Settings) -> Iterator[Said]:
        for given in (settings.given[key] for key in BASES if key in settings):
            for name in _named(given.value):
                plain = name.removesuffix(".yaml")
                if own.fullmatch(plain):
                    continue
                if plain in settings.options.allowed:
                    yield Note(Outcome.LACKING, f"{given.name}: {name}", "passed over, as --allow says", (given.name,))
                else:
                    yield Problem(f"{given.name}: {name}", MISSING.format(plain), (given.name,))

    return rule


def _named(value: Any) -> Iterator[str]:
    """Names of files: those of a list, and of groups (`optim: fsdp`), but not of Hydra's own."""
    for entry in value if isinstance(value, list) else [value]:
        groups = entry if isinstance(entry, dict) else {"": entry}
        for group, names in groups.items():
            for name in names if isinstance(names, list) else [names]:
                plain = str(name).removeprefix("optional ")
                if "hydra/" not in f"{group}{plain}" and name not in NONE and plain != SELF:
                    yield plain
