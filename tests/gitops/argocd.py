"""Argo CD's Lua: version 5.1 without most of its libraries (argoproj/argo-cd, util/lua/lua.go and oslib_safe.go)."""

import json
import re
from pathlib import Path
from typing import Any

from lupa import lua51

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "gitops" / "argocd" / "rljob.dev" / "RLJob"

SANDBOX = """
local os = { time = os.time, date = os.date }
for _, name in ipairs({ "string", "math", "io", "debug", "coroutine", "dofile", "loadfile" }) do _G[name] = nil end
getmetatable("").__index = nil
_G.os = os
package.loaded = {}
package.preload = { os = function() return os end }
"""


def run(script: Path, obj: dict[str, Any]) -> Any:
    """What the script returns for this object, as JSON."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.execute(SANDBOX)
    runtime.globals()["obj"] = _table(runtime, obj)
    return _json(runtime.execute(script.read_text()))


def health(obj: dict[str, Any]) -> tuple[str, str]:
    found = run(SCRIPTS / "health.lua", obj)
    return found["status"], found["message"]


def enabled(obj: dict[str, Any]) -> set[str]:
    """Actions that are offered."""
    return {name for name, action in run(SCRIPTS / "actions/discovery.lua", obj).items() if not action["disabled"]}


def act(name: str, obj: dict[str, Any]) -> dict[str, Any]:
    """The object after an action."""
    return run(SCRIPTS / "actions" / name / "action.lua", json.loads(json.dumps(obj)))


def fields(text: str) -> set[str]:
    """`a.b` that a script reads of the job."""
    return set(re.findall(r"\bstatus\.([A-Za-z]+)", text))


def _table(runtime: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return runtime.table_from({k: _table(runtime, v) for k, v in value.items() if v is not None})
    if isinstance(value, list):
        return runtime.table_from([_table(runtime, v) for v in value])
    return value


def _json(value: Any) -> Any:
    """As gopher-json encodes: a table with numbers for keys, or none, is an array."""
    if lua51.lua_type(value) != "table":
        return value
    keys = list(value.keys())
    if all(isinstance(k, int) for k in keys):
        return [_json(value[k]) for k in sorted(keys)]
    return {k: _json(value[k]) for k in keys}
