"""Python files that belong to no package: examples' and generators' scripts."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def loaded(file: Path) -> ModuleType:
    """The file as a new module, named for it and its directory. It can be found by its name, as dataclasses need it."""
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
