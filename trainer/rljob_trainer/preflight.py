"""Files that a job names against its spec, before its ranks start: config.json of the model, adapter_config.json of the adapters to begin from.
Without torch. Ranks check them too, each file when they read it, and end with the first mistake."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_api.rules.engine import Violation
from rljob_api.rules.lora import CONFIG, FIELD, WEIGHTS, given_violations, named_modules
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LoraSpec
from rljob_trainer.model_files import damage, is_pointer


def violations(spec: RLJobSpec) -> list[Violation]:
    """All mistakes at once. Of a model that is not there nothing. Raises OSError."""
    config, broken = model_config(spec.model.path)
    lora, damaged = spec.model.lora, [*broken, *_damage(spec, config, bool(broken))]
    config = {} if damaged else config  # what is broken says nothing of the job
    return [
        *damaged,
        *model_violations(spec, config),
        *(adapter_violations(lora, config, str(lora.path)) if lora and lora.path else ()),
    ]


def _damage(spec: RLJobSpec, config: dict[str, Any], broken: bool) -> Iterator[Violation]:
    """Of the directories of all models that the ranks load. `broken`: it is said already that the policy's config.json is."""
    if not broken:
        yield from damage("spec.model.path", spec.model.path, config, weights=not spec.model.megatron_checkpoint)
    for field, path in _others(spec):
        found, unread = model_config(path)
        yield from unread or damage(field, path, found)


def _others(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Models with a directory of their own, by field. One that a Megatron checkpoint replaces has none."""
    named = [(f"spec.{name}", getattr(spec, name)) for name in ("critic", "reference")]
    named += [(f"spec.rewards[{i}].model", reward.model) for i, reward in enumerate(spec.rewards)]
    for field, section in named:
        if (path := getattr(section, "path", None)) and not getattr(section, "megatron_checkpoint", None):
            yield f"{field}.path", path


def model_config(directory: str) -> tuple[dict[str, Any], list[Violation]]:
    """The model's own numbers, none when it is not there, and what is wrong with their file. Raises OSError."""
    file = Path(directory) / "config.json"
    return read(file, "spec.model.path") if file.is_file() else ({}, [])


def adapter_violations(lora: LoraSpec, model: dict[str, Any], directory: str) -> Iterator[Violation]:
    """`model`: its config.json, empty when it is not there. `directory`: where the adapters to begin from lie here."""
    yield from absent(lora, directory)
    if (file := Path(directory) / CONFIG).is_file():
        config, broken = read(file, f"{FIELD}.path")
        yield from broken or given_violations(lora, model, config, named_modules(config))


def absent(lora: LoraSpec, directory: str) -> Iterator[Violation]:
    """The files of adapters that are not there."""
    for name in (CONFIG, WEIGHTS):
        if not (Path(directory) / name).is_file():
            fix = "name a directory of the peft library, with safetensors"
            yield Violation(f"{FIELD}.path", str(lora.path), f"holds no {name}", fix)


def read(file: Path, field: str) -> tuple[dict[str, Any], list[Violation]]:
    """What it holds, and what is wrong with it. Raises OSError: a volume may be away."""
    if is_pointer(file):
        problem = f"its {file.name} is a Git LFS pointer, not the file itself"
        return {}, [Violation(field, str(file.parent), problem, "fetch it with git lfs pull")]
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        return {}, [Violation(field, str(file.parent), f"its {file.name} cannot be read: {error}", "copy it again")]
    if not isinstance(found, dict):
        return {}, [Violation(field, str(file.parent), f"its {file.name} is no JSON object", "copy it again")]
    return found, []
