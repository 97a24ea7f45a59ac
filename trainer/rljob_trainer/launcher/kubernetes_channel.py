"""The channel of a cluster: one ConfigMap that is watched, one that is patched, and no right to anything else.

Each watch asks without a resource version: the server then begins with the object as it is and goes on with its changes, so that
nothing has to be resumed, whatever was missed. A watch lives WATCH_SECONDS; the next one begins with the current state again.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from aiohttp import ClientError, ClientResponse, ClientTimeout
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from rljob_api import names
from rljob_api.protocol import Control, Report
from rljob_trainer.launcher.channel import parse_control

WATCH_SECONDS = 30
"""A connection that died silently is noticed so much later, at most."""
REQUEST_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 3.0
OUTAGE = (ApiException, ClientError, OSError, TimeoutError)

log = logging.getLogger(__name__)


def in_cluster(namespace: str, job: str, pod: str) -> "KubernetesChannel":
    """With the pod's own service account; its token is read again when the kubelet has replaced it."""
    settings = client.Configuration()
    config.load_incluster_config(client_configuration=settings)
    return KubernetesChannel(settings, namespace, names.control(job), names.report(pod))


class KubernetesChannel:
    """`control` and `report` name the ConfigMaps."""

    def __init__(self, settings: client.Configuration, namespace: str, control: str, report: str) -> None:
        self._client = client.ApiClient(settings)
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._control, self._report = control, report

    async def controls(self) -> AsyncIterator[Control]:
        seen, patience = "", _Patience(self._control)
        while True:
            try:
                async for text in self._watch():
                    patience.restored()
                    if text != seen:
                        seen = text
                        yield parse_control(text)
            except OUTAGE as error:
                await patience.wait(error)

    async def report(self, report: Report) -> None:
        """Waits, if it must, for the operator to create the ConfigMap."""
        patch, patience = {"data": {names.REPORT_KEY: report.dump_json()}}, _Patience(self._report)
        while True:
            try:
                async with await self._request(
                    "PATCH", f"/{self._report}", patch, limits=ClientTimeout(REQUEST_SECONDS)
                ):
                    return patience.restored()
            except OUTAGE as error:
                await patience.wait(error)

    async def _watch(self) -> AsyncIterator[str]:
        """The control's text: now, and after each change. Ends after WATCH_SECONDS."""
        query = {"fieldSelector": f"metadata.name={self._control}", "watch": "1", "timeoutSeconds": WATCH_SECONDS}
        silence = ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=WATCH_SECONDS + REQUEST_SECONDS)
        async with await self._request("GET", f"?{urlencode(query)}", limits=silence) as response:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiException(status=event["object"].get("code"), reason=event["object"].get("message"))
                text = (event["object"].get("data") or {}).get(names.CONTROL_KEY)
                if text and event["type"] != "DELETED":
                    yield text

    async def _request(self, method: str, path: str, body: Any = None, *, limits: ClientTimeout) -> ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/merge-patch+json"}
        serialized = await self._client.param_serialize(
            method, self._path + path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        verb, url, sent, data, post = serialized
        answer = await self._client.call_api(verb, url, sent, data, post, _request_timeout=limits)
        response: ClientResponse = answer.response
        if response.status >= 400:
            text = await response.text()
            raise ApiException(status=response.status, reason=text[:500])
        return response


class _Patience:
    """Waits longer and longer for something that does not answer, and says so once."""

    def __init__(self, what: str) -> None:
        self._what, self._seconds = what, FIRST_BACKOFF_SECONDS

    async def wait(self, error: Exception) -> None:
        if self._seconds == FIRST_BACKOFF_SECONDS:
            log.warning(
                "ConfigMap %s: %s; trying again", self._what, " ".join(f"{error!s}".split()) or type(error).__name__
            )
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST_BACKOFF_SECONDS)

    def restored(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS


async def _lines(response: ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own iterator refuses those over 128 KiB."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
