"""RLJobs and model configurations from files."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kubectl_rljob.errors import UserError
from rljob_api import names


@dataclass(frozen=True)
class Manifest:
    """One RLJob of a file, not checked yet beyond being one."""

    name: str
    spec: dict[str, Any]


def read(file: str) -> list[Manifest]:
    """All RLJobs of a YAML or JSON file (`-`: standard input). Other kinds in it are passed over."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = [d for d in yaml.safe_load_all(text) if isinstance(d, dict)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from error
    found = [_manifest(file, d) for d in documents if d.get("kind") == names.KIND]
    if not found:
        kinds = ", ".join(sorted({str(d.get("kind")) for d in documents})) or "nothing"
        raise UserError(f"{file} holds no {names.KIND} (found: {kinds})")
    return found


def _manifest(file: str, document: dict[str, Any]) -> Manifest:
    if document.get("apiVersion") != names.API_VERSION:
        raise UserError(f"{file}: apiVersion = {document.get('apiVersion')}: must be {names.API_VERSION}")
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise UserError(f"{file}: metadata.name is missing: a job needs a name")
    if not isinstance(spec, dict):
        raise UserError(f"{file}: spec is missing or not an object", "kubectl explain rljob.spec")
    return Manifest(metadata["name"], spec)


def model_config(directory: str) -> dict[str, Any]:
    """config.json of a Hugging Face directory."""
    file = Path(directory) / "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"--model: cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--model: {file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"--model: {file} is not a model configuration")
    return config
