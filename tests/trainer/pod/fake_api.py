"""As much of the Kubernetes API as a launcher may use: watch one ConfigMap by name, patch another."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

from rljob_trainer.pod.kubernetes import ApiServer


class FakeApi:
    """`control` is what the control's ConfigMap holds. `break_connections` and `down` make it behave badly. `directory`: for the pod's token."""

    def __init__(self, control: str, directory: Path) -> None:
        self._token = directory / "token"
        self.control = control
        self.patches: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.watches = 0
        self.refused_patches = 0
        self.down = False
        self.forbidden = 0
        self.brief = False
        """Each watch ends behind what it begins with."""
        self._changed = asyncio.Event()
        self._open: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, context: ssl.SSLContext | None = None, authority: Path | None = None) -> ApiServer:
        """`context`: of a server with a certificate; `authority`: the file of those that vouch for it."""
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/api/v1/namespaces/ns/configmaps", self._watch)
        app.router.add_patch("/api/v1/namespaces/ns/configmaps/{name}", self._patch)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await self._site.start()
        self._token.write_text("of the pod\n")
        scheme = "https" if context else "http"
        return ApiServer(f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}", self._token, authority)

    async def certify(self, context: ssl.SSLContext) -> None:
        """From now on it has another certificate, and no connection of before."""
        assert self._runner
        port = self._runner.addresses[0][1]
        await self._site.stop()
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=context)
        await self._site.start()
        self.break_connections()

    async def stop(self) -> None:
        assert self._runner
        await self._runner.cleanup()

    def publish(self, control: str) -> None:
        self.control = control
        self._changed.set()

    def break_connections(self) -> None:
        for response in self._open:
            if response._req and response._req.transport:
                response._req.transport.abort()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers["Authorization"])
        self.watches += 1
        if self.down:
            return web.Response(status=503, text="the server is currently unable to handle the request")
        if self.forbidden:
            return web.Response(status=self.forbidden, text="no")
        assert dict(request.query)["fieldSelector"] == "metadata.name=job-control"
        assert "resourceVersion" not in request.query
        response = web.StreamResponse()
        await response.prepare(request)
        self._open.add(response)
        try:
            await self._send_changes(response)
        finally:
            self._open.discard(response)
        return response

    async def _send_changes(self, response: web.StreamResponse) -> None:
        kind = "ADDED"
        while True:
            self._changed.clear()
            event = {"type": kind, "object": {"data": {"control.json": self.control}}}
            if self.control == "gone":
                event = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
            if not self.control:
                event = {"type": "DELETED", "object": {"data": {"control.json": "as it was"}}}
            await response.write(json.dumps(event).encode() + b"\n")
            if self.control == "gone" or self.brief:
                return
            await self._changed.wait()
            kind = "MODIFIED"

    async def _patch(self, request: web.Request) -> web.Response:
        if self.down:
            self.refused_patches += 1
            return web.Response(status=503)
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        self.patches.append({"name": request.match_info["name"], **await request.json()})
        return web.json_response({})
