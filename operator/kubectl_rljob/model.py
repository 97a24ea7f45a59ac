"""config.json of the model that `plan` counts with: from a directory, a file, or a hub."""

import json
import os
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kubectl_rljob.errors import UserError

HUB = "https://huggingface.co"
HUB_ID = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?")
"""`ORG/MODEL`, or as `model.source` has it: `hf://ORG/MODEL@REVISION`."""
SECONDS = 20.0
LARGEST = 2**24


def model_config(where: str) -> dict[str, Any]:
    """`where`: a directory or a file of this machine; what is neither is looked up on the hub. Raises UserError."""
    path = Path(where)
    if path.exists():
        file = path / "config.json" if path.is_dir() else path
        return _parsed(str(file), _read(file))
    found = HUB_ID.fullmatch(where)
    if not found:
        raise UserError(
            f"--model {where}: no such directory or file, and not the name of a model, such as Qwen/Qwen2.5-7B-Instruct"
        )
    return _from_hub(where, found[1], found[2] or "main")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--model: cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _from_hub(where: str, name: str, revision: str) -> dict[str, Any]:
    endpoint, token = os.environ.get("HF_ENDPOINT", HUB).rstrip("/"), os.environ.get("HF_TOKEN")
    url = f"{endpoint}/{name}/resolve/{revision}/config.json"
    try:
        with urlopen(
            Request(url, headers={"Authorization": f"Bearer {token}"} if token else {}), timeout=SECONDS
        ) as answer:
            text = answer.read(LARGEST).decode()
    except HTTPError as error:
        raise UserError(f"--model {where}: {_why(error.code)} ({url}: {error.code})") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"--model {where}: there is no such directory here, and {endpoint} is not reached: {reason}"
        ) from error
    return _parsed(url, text)


def _why(status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the hub has no such model, or it is a gated one: set HF_TOKEN"
    return (
        "there is no such directory here, and no such model on the hub"
        if status == HTTPStatus.NOT_FOUND
        else "the hub failed"
    )


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserError(f"--model: {where} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"--model: {where} is not a model configuration")
    return config
