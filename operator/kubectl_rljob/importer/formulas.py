"""Algorithms that an RLJob does not have: refused, unless the command line names a file with a formula of the user's own."""

from collections.abc import Iterable, Iterator
from typing import Literal

from kubectl_rljob.importer.settings import Settings, show
from kubectl_rljob.importer.table import Field, Problem, Said

PAGE = "docs/algorithms.md#functions-of-your-own"


def own(settings: Settings, key: str, part: Literal["advantage", "loss"], known: Iterable[str]) -> Iterator[Said]:
    """What a key becomes whose value is none of the `known`: the function `advantage` or `loss` of --formula."""
    path = settings.options.formula
    if path is None:
        text = f"{show(settings[key])} is none of {', '.join(dict.fromkeys(known))}"
        yield Problem(
            settings.origin(key), f"{text}: write it as a function ({PAGE}), and name its file with --formula"
        )
        return
    yield settings.field(f"algorithm.{part}", "python", key)
    yield Field(f"algorithm.{part}Function.path", path, "--formula")
    yield Field(f"algorithm.{part}Function.function", part, "--formula")
    yield settings.changed(key, f"the function `{part}` of {path} in its place ({PAGE})")
