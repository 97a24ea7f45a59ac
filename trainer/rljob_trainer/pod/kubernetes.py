"""The channel of a cluster: one ConfigMap that is watched, one that is patched, and no right to anything else.

Each watch asks without a resource version: the server then begins with the object as it is and continues with its changes, so that
nothing has to be resumed, whatever was missed. A watch lives WATCH_SECONDS; the next one begins with the current state again.
"""

import asyncio
import json
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from aiohttp import (
    ClientConnectorCertificateError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    TCPConnector,
)

from rljob_api import names
from rljob_api.protocol import Control, Report
from rljob_api.text import join_host_port
from rljob_trainer.pod.channel import control_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_SECONDS = 30
"""A connection that died silently is noticed so much later, at most."""
WATCH_REST_SECONDS = 1.0
"""Between two watches at least, also where something ends each of them at once."""
REQUEST_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 3.0

log = logging.getLogger(__name__)


FORBIDDEN = {
    401: "the API server does not accept this pod's token (its ServiceAccount was deleted or made again)",
    403: "this pod may not read or write it (its Role was deleted or changed)",
    404: "it does not exist",
}
"""Statuses that say what is wrong, when they last."""


class Refused(Exception):
    """The API server answered, and not with what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        meaning = FORBIDDEN.get(status)
        super().__init__(f"{status}: {meaning}" if meaning else f"{status} {text}")
        self.status = status


OUTAGE = (Refused, ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where it is and how it knows us. Two requests are all that we need of it: its client library takes as long to import as all else here."""

    url: str
    token: Path
    """Read for every request, since the kubelet replaces it."""
    authority: Path | None = None
    """Certificates that vouch for it."""


def in_cluster(namespace: str, job: str, pod: str) -> "KubernetesChannel":
    """With the pod's own service account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    server = ApiServer(f"https://{join_host_port(host, port)}", SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt")
    return KubernetesChannel(server, namespace, names.control(job), names.report(pod))


class KubernetesChannel:
    """`control` and `report` name the ConfigMaps. To be made inside the event loop."""

    def __init__(self, server: ApiServer, namespace: str, control: str, report: str) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=server.authority)
        self._session = ClientSession(connector=TCPConnector(ssl=self._context))
        self._path = f"{server.url}/api/v1/namespaces/{namespace}/configmaps"
        self._control, self._report = control, report

    async def controls(self) -> AsyncIterator[Control | None]:
        seen, patience = "", _Patience(self._control)
        while True:
            following = time.monotonic() + WATCH_REST_SECONDS
            try:
                async for text in self._watch():
                    patience.restored()
                    if text != seen:
                        seen = text
                        yield await control_of(text) if text else None
                await asyncio.sleep(following - time.monotonic())
            except OUTAGE as error:
                self._trust(error)
                if seen and isinstance(error, Refused) and error.status in FORBIDDEN:
                    seen = ""
                    yield None
                await patience.wait(error)

    async def report(self, report: Report) -> None:
        """Waits, if it must, for the operator to create the ConfigMap."""
        patch, patience = json.dumps({"data": {names.REPORT_KEY: report.dump_json()}}), _Patience(self._report)
        limits = ClientTimeout(REQUEST_SECONDS)
        while True:
            try:
                async with self._request("PATCH", f"/{self._report}", patch, limits):
                    return patience.restored()
            except OUTAGE as error:
                self._trust(error)
                await patience.wait(error)

    def _trust(self, error: Exception) -> None:
        """Accepts the authority that the kubelet has written since, if the error was that nobody vouches for the server: clusters replace theirs."""
        if isinstance(error, ClientConnectorCertificateError) and self._server.authority:
            with suppress(OSError):  # while the file is replaced; the next outage comes here again
                self._context.load_verify_locations(self._server.authority)

    async def _watch(self) -> AsyncIterator[str]:
        """The control's text: now, and after each change; empty when it is deleted. Ends after WATCH_SECONDS."""
        query = {"fieldSelector": f"metadata.name={self._control}", "watch": "1", "timeoutSeconds": WATCH_SECONDS}
        silence = ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=WATCH_SECONDS + REQUEST_SECONDS)
        async with self._request("GET", f"?{urlencode(query)}", None, silence) as response:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refused(int(event["object"].get("code", 0)), str(event["object"].get("message")))
                text = (event["object"].get("data") or {}).get(names.CONTROL_KEY)
                if event["type"] == "DELETED":
                    yield ""
                elif text:
                    yield text

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: str | None, limits: ClientTimeout
    ) -> AsyncIterator[ClientResponse]:
        headers = {"Authorization": f"Bearer {self._server.token.read_text().strip()}"}
        headers |= {"Content-Type": "application/merge-patch+json"} if body else {}
        url = self._path + path
        async with self._session.request(method, url, data=body, headers=headers, timeout=limits) as response:
            if response.status >= 400:
                raise Refused(response.status, (await response.text())[:500])
            yield response


class _Patience:
    """Waits longer and longer for something that does not answer, and says once what is wrong, and again when it is something else."""

    def __init__(self, what: str) -> None:
        self._what, self._seconds, self._said = what, FIRST_BACKOFF_SECONDS, ""

    async def wait(self, error: Exception) -> None:
        text = " ".join(f"{error!s}".split()) or type(error).__name__
        if text != self._said:
            log.warning("ConfigMap %s: %s; trying again", self._what, text)
        self._said = text
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST_BACKOFF_SECONDS)

    def restored(self) -> None:
        self._seconds, self._said = FIRST_BACKOFF_SECONDS, ""


async def _lines(response: ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own iterator refuses those over 128 KiB."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
