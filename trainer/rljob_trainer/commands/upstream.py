"""Says what a bump of torch, megatron-core, megatron-bridge, transformers or vLLM changes under our patches.

    python -m rljob_trainer.commands.upstream

Run it where the new versions are installed. It prints a line for each place whose source is not the one that its patch was proven on, with the new
fingerprint, and for each package of a version that no patch was proven on. Exit code 1: there are such lines. docs/support.md has the recipe.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from rljob_trainer import patches
from rljob_trainer.megatron import compat as megatron_compat
from rljob_trainer.patches import Patch
from rljob_trainer.server import compat as vllm_compat


def changes(patches_in_use: Iterable[Patch]) -> Iterator[str]:
    """A line for each version and place that differs. A package that is absent, and whose patch is therefore not needed, is left out."""
    for patch in patches_in_use:
        installed = patches.installed_version(patch.package)
        if installed == patches.ABSENT and not patch.needed():
            continue
        if installed not in patch.versions:
            yield f"{patch.name}: {patch.package} {installed}, proven on {' or '.join(patch.versions)}"
        for place, proven in patch.replaces.items():
            now = _fingerprint(patch, place)
            if now != proven:
                yield f"{patch.name}: {place} {now}"


def _fingerprint(patch: Patch, place: str) -> str:
    try:
        return patches.fingerprint(patch.package, place)
    except (FileNotFoundError, StopIteration):
        return "is gone"


def _all_patches() -> Iterator[Patch]:
    """Those of Megatron are applied after they are listed, whatever the versions: modules after them import what they make importable."""
    for of_module in _by_module(megatron_compat):
        yield from of_module
        for patch in of_module:
            if patch.apply and patch.needed():
                patch.apply()
    for of_module in _by_module(vllm_compat):
        yield from of_module


def _by_module(package: ModuleType) -> Iterator[tuple[Patch, ...]]:
    for name in package.MODULES:
        yield importlib.import_module(f"{package.__name__}.{name}").PATCHES


def main() -> int:
    changed = False
    for line in changes(_all_patches()):
        print(line, flush=True)
        changed = True
    if not changed:
        print("every patch stands on the source that it was proven on")
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
