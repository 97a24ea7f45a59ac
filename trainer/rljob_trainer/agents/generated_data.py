"""Files of prompts that a library writes (spec.data.generated): once, next to a record of how, so that every attempt of the job has the same rows."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rljob_api.callbacks import nothing
from rljob_api.spec.model import DataSpec, GeneratedData
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.textfile import replace

MODULES = {"reasoning-gym": "reasoning_gym", "verifiers": "verifiers"}
"""Of rljob_trainer.agents.environments, by the package that has to be installed."""
SECONDS = 3600.0
"""For one file."""
LOOK_SECONDS = 5.0
"""Interval at which the generation of a file is reported."""
SHOWN = 1000
"""Characters of what the process said last."""


def generate(spec: DataSpec, moved: Callable[[str], object] = nothing) -> None:
    """All files that are not there yet. `moved` is called again and again with what is done. Raises ConfigurationError."""
    for i, one in enumerate(spec.generated):
        field, file, record = f"spec.data.generated[{i}]", Path(one.path), Path(f"{one.path}.generated")
        request = json.dumps(_request(spec, one), sort_keys=True)
        if not file.exists():
            _write(field, one, request, moved)
            replace(record, request)
        elif record.exists() and record.read_text() != request:
            fix = "remove the file and its .generated, or choose another path"
            raise ConfigurationError(f"{field}.path", one.path, "the file was generated with other settings", fix)


def _request(spec: DataSpec, one: GeneratedData) -> dict[str, object]:
    """As environments/rows.py has it."""
    keys = {"prompt": spec.prompt_key, "answer": spec.answer_key, "data_source": spec.data_source_key}
    asked = one.model_dump(include={"environment", "arguments", "offset", "size", "seed"})
    return asked | {"keys": keys, "source": f"{one.library}/{one.environment}"}


def _write(field: str, one: GeneratedData, request: str, moved: Callable[[str], object]) -> None:
    file, whole = Path(one.path), Path(f"{one.path}.{secrets.token_hex(8)}.tmp")  # other pods may write there
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _run(field, one, json.dumps(json.loads(request) | {"path": str(whole)}), moved)
        whole.replace(file)
    except OSError as error:
        raise ConfigurationError(
            f"{field}.path", one.path, f"cannot be written: {error}", "choose a path on a writable volume"
        ) from error
    finally:
        whole.unlink(missing_ok=True)


def _run(field: str, one: GeneratedData, request: str, moved: Callable[[str], object]) -> None:
    """Generators may depend on the order of sets of texts, which is the same in every process with this variable."""
    command = (sys.executable, "-m", "rljob_trainer.agents.environments.rows", MODULES[one.library], request)
    environment, quiet = os.environ | {"PYTHONHASHSEED": "0"}, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, env=environment) as process:
        said = _said(process, partial(moved, f"{one.library} generates {one.path}"))
    if said is None:
        raise _failed(field, one, f"took longer than {SECONDS:g} s")
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["its process ended"]
        raise _failed(field, one, f"cannot be generated: {lines[-1][-SHOWN:]}")


def _said(process: "subprocess.Popen[bytes]", moved: Callable[[], object]) -> bytes | None:
    """What it wrote to stderr; None if it took longer than SECONDS. It does not run any more."""
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            moved()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=LOOK_SECONDS)[1]
    finally:
        process.kill()
    return None


def _failed(field: str, one: GeneratedData, rule: str) -> ConfigurationError:
    fix = f"correct name, arguments and size, and see that {one.library} is installed in the trainer's image"
    return ConfigurationError(f"{field}.environment", one.environment, rule, fix)
