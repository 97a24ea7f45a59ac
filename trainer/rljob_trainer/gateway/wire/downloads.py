"""Files of saved adapters, which clients download by links: whoever has one needs no key, so a link is signed, and holds for LINK_SECONDS."""

import asyncio
import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from rljob_trainer.gateway.registry import SavedModel
from rljob_trainer.gateway.service import GatewayService, UnknownError
from rljob_trainer.gateway.wire import bodies
from rljob_trainer.gateway.wire.requests import EXTERNAL_WEIGHTS, SCHEME

LINK_SECONDS = 3600


class Downloads:
    """Handlers. Links of a gateway end with it: clients ask for new ones."""

    def __init__(self, service: GatewayService, path: str) -> None:
        """`path`: of the links, which ends with a slash."""
        self._service, self._path, self._secret = service, path, secrets.token_bytes(32)

    async def links(self, client: str, request: web.Request) -> dict[str, Any]:
        """A link for each file, by its name. Raises UnknownError."""
        run, name = request.match_info["run"], request.match_info["name"]
        saved = self._service.named(client, f"{SCHEME}{run}/{EXTERNAL_WEIGHTS}/{name}")
        files = await asyncio.to_thread(_files, self._directory(saved))
        expires = int(time.time()) + LINK_SECONDS
        root = f"{_scheme(request)}://{request.host}{self._path}"
        links = {file: f"{root}{run}/{name}/{file}?{self._query(run, name, file, expires)}" for file in files}
        return {"urls": links, "expires": datetime.fromtimestamp(expires, UTC).isoformat()}

    async def file(self, request: web.Request) -> web.StreamResponse:
        """What a link leads to."""
        run, name, file = (request.match_info[part] for part in ("run", "name", "file"))
        expires = request.query.get("expires", "")
        offered = request.query.get("signature", "")
        if not expires.isdecimal() or not hmac.compare_digest(
            offered.encode(), self._signature(run, name, file, expires)
        ):
            return bodies.refused(403, "this link is not signed by this gateway: ask for a new one")
        if int(expires) < time.time():
            return bodies.refused(403, "this link has expired: ask for a new one")
        saved = self._service.names.saved.get(f"{SCHEME}{run}/{EXTERNAL_WEIGHTS}/{name}")
        path = self._directory(saved) / file if saved else None
        if path is None or not await asyncio.to_thread(path.is_file):
            return bodies.refused(404, f"there is no {file} of {run}/{EXTERNAL_WEIGHTS}/{name}")
        return web.FileResponse(path)

    def _directory(self, saved: SavedModel) -> Path:
        return Path(self._service.files.path(saved.directory))

    def _query(self, run: str, name: str, file: str, expires: int) -> str:
        return urlencode({"expires": expires, "signature": self._signature(run, name, file, str(expires)).decode()})

    def _signature(self, *parts: str) -> bytes:
        return hmac.new(self._secret, "\0".join(parts).encode(), hashlib.sha256).hexdigest().encode()


def _files(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if path.is_file())
    except FileNotFoundError:
        raise UnknownError("its files are gone") from None


def _scheme(request: web.Request) -> str:
    """How the client reaches the gateway: an Ingress ends TLS and says so."""
    said = request.headers.get("X-Forwarded-Proto", request.scheme)
    return said if said in ("http", "https") else request.scheme
