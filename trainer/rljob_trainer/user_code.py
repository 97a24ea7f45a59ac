"""A user's Python file as a module under its own name, in a process of its own: pickle finds its classes and functions by that name, and so do
processes that it starts by spawn or forkserver. And what it raised, in one line that names the file and the line, and what a dict has in place of a
key that was asked for.

Imports nothing large: workers import this when they start.
"""

import ast
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "RLJOB_USER_MODULE"
"""`NAME=PATH` of the module, for the processes that it starts."""


class _Finder:
    """Finds the file where no directory of sys.path has it: its name may be that of a library, under which it cannot be imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known, _, file = os.environ.get(VARIABLE, "").partition("=")
        return importlib.util.spec_from_file_location(name, file) if name == known else None


sys.meta_path.append(_Finder)  # multiprocessing imports the main module of its parent, and with it this one


@lru_cache(maxsize=1)
def imported(path: str) -> ModuleType:
    """The module; the file's directory is importable, as for a script. Raises what the file raises."""
    file = Path(path)
    if file.suffix != ".py":
        raise ImportError("not a Python file: its name has to end in .py")
    free = _is_free(file)
    name = file.stem if free else "rljob_user_" + "".join(c if c.isalnum() else "_" for c in file.stem)
    _make_importable(str(file.parent), first=free)
    os.environ[VARIABLE] = f"{name}={path}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_imports(path: str, function: str) -> None:
    """Raises ImportError for a package that the function, or another of the file that it uses, imports only when it is called, and that is not there.
    An import that the file itself guards with `try` may fail."""
    defined = {node.name: node for node in ast.parse(Path(path).read_bytes()).body if isinstance(node, _DEFINITIONS)}
    seen, following = set[str](), [function]
    while following:
        name = following.pop()
        if name in seen or name not in defined:
            continue
        seen.add(name)
        for node in _unguarded(defined[name]):
            following += [node.id] if isinstance(node, ast.Name) else []
            for package in _packages(node):
                if package not in sys.modules and importlib.util.find_spec(package) is None:
                    raise ImportError(
                        f"{name}() imports {package} in line {getattr(node, 'lineno', 0)}, which is not installed"
                    )


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _unguarded(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Try) and child.handlers):
            yield child
            yield from _unguarded(child)


def _packages(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return (
        [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
    )


def _is_free(file: Path) -> bool:
    """Whether nothing else can be imported under the file's name."""
    if not file.stem.isidentifier() or file.stem in sys.modules or file.stem in sys.stdlib_module_names:
        return False
    spec = importlib.util.find_spec(file.stem)
    return spec is None or (spec.origin is not None and Path(spec.origin).resolve() == file.resolve())


def _make_importable(directory: str, first: bool) -> None:
    """Here and in processes that the file starts; behind all libraries where the file itself has the name of one."""
    sys.path.insert(0 if first else len(sys.path), directory)
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, known) if first else (known, directory)))


def explain(error: BaseException, path: str, name: str) -> str:
    """`reward() in reward.py: ValueError: text (line 7: the line)`: with the innermost frame in the user's file, if there is one."""
    trace = error.__traceback__
    frames = zip(traceback.extract_tb(trace), traceback.walk_tb(trace), strict=True)
    own = [(said, frame.f_locals) for said, (frame, _) in frames if said.filename == path]
    what = f"{name}() in {Path(path).name}: {type(error).__name__}: {error}"[:3000]
    if not own:
        return what
    said, names = own[-1]
    return f"{what} (line {said.lineno}: {said.line}){_lacking(error, said.line or '', names)}"


SUBSCRIPTED = re.compile(r"\b(\w+)\[")
MOST_KEYS = 30


def _lacking(error: BaseException, line: str, names: Mapping[str, Any]) -> str:
    """For a KeyError: the keys that the dicts of its line have, since most often one of them was meant."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str):
        return ""
    dicts = {name: names.get(name) for name in SUBSCRIPTED.findall(line)}
    found = [
        f"{name} has {_keys(value)}" for name, value in dicts.items() if isinstance(value, dict) and key not in value
    ]
    return f", where {' and '.join(found)}" if found else ""


def _keys(value: dict[Any, Any]) -> str:
    keys = [repr(key) for key in value if isinstance(key, str)]
    more = len(keys) - MOST_KEYS
    return (", ".join(keys[:MOST_KEYS]) or "no keys") + (f" and {more} more" if more > 0 else "")
