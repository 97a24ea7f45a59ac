"""What verbs read from files and hubs: RLJobs; config.json of the model that `plan` counts with; adapter_config.json of adapters to begin from."""

import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from kubectl_rljob.errors import UserError
from rljob_api import manifest
from rljob_api.manifest import Manifest, ManifestError, OverrideError
from rljob_api.rules.lora import CONFIG


def read(file: str, settings: Iterable[str] = ()) -> list[Manifest]:
    """All RLJobs of a YAML or JSON file (`-`: standard input), with `settings` put in. Raises UserError."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return manifest.read(text, settings)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {file}: is not UTF-8") from error
    except ManifestError as error:
        raise UserError(f"{file}: {error}") from error
    except OverrideError as error:
        raise UserError(str(error)) from error


HUB = "https://huggingface.co"
HUB_ID = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?")
"""`ORG/MODEL`, or as `model.source` has it: `hf://ORG/MODEL@REVISION`."""
SECONDS = 20.0
LARGEST = 2**24


def model_config(where: str) -> dict[str, Any]:
    """`where`: a directory or a file of this machine; what is neither is looked up on the hub. Raises UserError."""
    return _File("--model", where, "config.json", "a model").content()


def adapter_config(where: str) -> dict[str, Any]:
    """Likewise."""
    return _File("--adapters", where, CONFIG, "adapters").content()


class _SameHost(HTTPRedirectHandler):
    """The token is for the hub, and not for the storage that it sends us to."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


@dataclass(frozen=True)
class _File:
    """The configuration that an option names."""

    option: str
    where: str
    name: str
    of: str

    def content(self) -> dict[str, Any]:
        path = Path(self.where)
        if _exists(path):
            file = path / self.name if path.is_dir() else path
            return self._parsed(str(file), self._read(file))
        name = HUB_ID.fullmatch(self.where)
        if not name:
            rule = f"no such directory or file, and not the name of {self.of}, such as Qwen/Qwen2.5-7B-Instruct"
            raise UserError(f"{self.option} {self.where}: {rule}")
        return self._from_hub(name[1], name[2] or "main")

    def _read(self, file: Path) -> str:
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{self.option}: cannot read {file}: {reason}") from error

    def _from_hub(self, name: str, revision: str) -> dict[str, Any]:
        endpoint, token = os.environ.get("HF_ENDPOINT", HUB).rstrip("/"), os.environ.get("HF_TOKEN")
        url = f"{endpoint}/{name}/resolve/{revision}/{self.name}"
        try:
            request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
            with build_opener(_SameHost).open(request, timeout=SECONDS) as answer:
                text = answer.read(LARGEST).decode()
        except HTTPError as error:
            raise UserError(f"{self.option} {self.where}: {_why(error.code)} ({url}: {error.code})") from error
        except (
            OSError,
            HTTPException,
            ValueError,
        ) as error:  # ValueError: HF_ENDPOINT is not a URL, HF_TOKEN holds a line end
            reason = getattr(error, "reason", None) or error
            rule = f"there is no such directory here, and {endpoint} is not reached: {reason}"
            raise UserError(f"{self.option} {self.where}: {rule}; name a directory of it or its {self.name}") from error
        return self._parsed(url, text)

    def _parsed(self, where: str, text: str) -> dict[str, Any]:
        try:
            config = json.loads(text)
        except ValueError as error:
            raise UserError(f"{self.option}: {where} is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise UserError(f"{self.option}: {where} is not a configuration of {self.of}")
        return config


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long to be one
        return False


def _why(status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the hub has no such model, or it is a gated one: set HF_TOKEN"
    return (
        "there is no such directory here, and no such model on the hub"
        if status == HTTPStatus.NOT_FOUND
        else "the hub failed"
    )
