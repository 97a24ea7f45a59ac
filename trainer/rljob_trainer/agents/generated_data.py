"""Files of prompts that a library writes (spec.data.generated): once, next to a record of how, so that every attempt of the job has the same rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rljob_api.spec.model import DataSpec, GeneratedData
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.textfile import replace

MODULES = {"reasoning-gym": "reasoning_gym", "verifiers": "verifiers"}
"""Of rljob_trainer.agents.environments, by the package that has to be installed."""
SECONDS = 3600.0
"""For one file."""
SHOWN = 1000
"""Characters of what the process said last."""


def generate(spec: DataSpec) -> None:
    """All files that are not there yet. Raises ConfigurationError."""
    for i, one in enumerate(spec.generated):
        field, file, record = f"spec.data.generated[{i}]", Path(one.path), Path(f"{one.path}.generated")
        request = json.dumps(_request(spec, one), sort_keys=True)
        if not file.exists():
            _write(field, one, request)
            replace(record, request)
        elif record.exists() and record.read_text() != request:
            fix = "remove the file and its .generated, or choose another path"
            raise ConfigurationError(f"{field}.path", one.path, "the file was generated with other settings", fix)


def _request(spec: DataSpec, one: GeneratedData) -> dict[str, object]:
    """As environments/rows.py has it."""
    keys = {"prompt": spec.prompt_key, "answer": spec.answer_key, "data_source": spec.data_source_key}
    asked = one.model_dump(include={"environment", "arguments", "size", "seed"})
    return asked | {"keys": keys, "source": f"{one.library}/{one.environment}"}


def _write(field: str, one: GeneratedData, request: str) -> None:
    file, whole = Path(one.path), Path(f"{one.path}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _run(field, one, json.dumps(json.loads(request) | {"path": str(whole)}))
        whole.replace(file)
    except OSError as error:
        raise ConfigurationError(
            f"{field}.path", one.path, f"cannot be written: {error}", "choose a path on a writable volume"
        ) from error
    finally:
        whole.unlink(missing_ok=True)


def _run(field: str, one: GeneratedData, request: str) -> None:
    """Generators may depend on the order of sets of texts, which is the same in every process with this variable."""
    command = (sys.executable, "-m", "rljob_trainer.agents.environments.rows", MODULES[one.library], request)
    environment, quiet = os.environ | {"PYTHONHASHSEED": "0"}, subprocess.DEVNULL
    try:
        ended = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, env=environment, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(field, one, f"took longer than {SECONDS:g} s") from error
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["its process ended"]
        raise _failed(field, one, f"cannot be generated: {lines[-1][-SHOWN:]}")


def _failed(field: str, one: GeneratedData, rule: str) -> ConfigurationError:
    fix = f"correct name, arguments and size, and see that {one.library} is installed in the trainer's image or in PYTHONPATH of spec.env"
    return ConfigurationError(f"{field}.environment", one.environment, rule, fix)
