"""The operator's credentials: in a pod its service account, elsewhere the kubeconfig, both as kopf reads them."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.request import getproxies

import aiohttp
import kopf

from rljob_api.address import join_host_port

log = logging.getLogger(__name__)

LIFETIME = 600.0
"""Seconds after which credentials are read again: the kubelet replaces a pod's token long before it expires."""

Login = Callable[[], kopf.ConnectionInfo]


def login() -> kopf.ConnectionInfo:
    """LoginError if there are no credentials."""
    settings = kopf.OperatorSettings()
    if account := kopf.login_with_service_account(settings=settings):
        return replace(account, server=_server())
    if found := kopf.login_with_kubeconfig(settings=settings):
        return found
    raise kopf.LoginError("there is neither a service account nor a kubeconfig")


def _server() -> str:
    """The address that every container gets, so that requests do not depend on the cluster's DNS."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    return f"https://{join_host_port(host, port)}"


class Credentials:
    """Read anew every LIFETIME, and whenever the API server has refused them. What was read last stays in force while nothing can be read."""

    def __init__(self, login: Login = login) -> None:
        self._login = login
        self._info = login()
        self._until = time.monotonic() + LIFETIME

    @property
    def server(self) -> str:
        return str(self._info.server).rstrip("/")

    def headers(self) -> dict[str, str]:
        if time.monotonic() >= self._until:
            self.renew()
        return self._info.as_http_headers()

    def renew(self) -> None:
        self._until = time.monotonic() + LIFETIME
        try:
            self._info = self._login()
        except (kopf.LoginError, OSError) as error:
            log.warning("credentials cannot be read again: %s", error)

    def session(self, connections: int, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """With at most so many connections; 0: any number. Its default headers are those of now."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=self._info.as_ssl_context()),
            headers=self.headers(),
            middlewares=middlewares,
            proxy=self._info.proxy_url,
            trust_env=bool(getproxies()),  # aiohttp would look for .netrc and proxies at every request, in a thread
        )
