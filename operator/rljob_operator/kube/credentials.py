"""The operator's credentials: in a pod its service account, elsewhere the kubeconfig, both as kopf reads them."""

import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.request import getproxies
from weakref import WeakSet

import aiohttp
import kopf

from rljob_api.text import join_host_port

log = logging.getLogger(__name__)

LIFETIME = 600.0
"""Seconds after which credentials are read again: the kubelet replaces a pod's token long before it expires."""

Login = Callable[[], kopf.ConnectionInfo]


def login() -> kopf.ConnectionInfo:
    """The service account of the pod, else the current context of the kubeconfig. Raises kopf.LoginError when there is neither."""
    settings = kopf.OperatorSettings()
    if account := kopf.login_with_service_account(settings=settings):
        return replace(account, server=_server())
    if connection := kopf.login_with_kubeconfig(settings=settings):
        return connection
    raise kopf.LoginError("there is neither a service account nor a kubeconfig")


def _server() -> str:
    """The API server by the address in the container's environment, so that requests do not depend on the cluster's DNS."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    return f"https://{join_host_port(host, port)}"


class Credentials:
    """Reads the credentials again every LIFETIME, and whenever the API server has refused them or has a certificate that they do not vouch for. Keeps
    the last ones while that fails."""

    def __init__(self, login: Login = login) -> None:
        self._login = login
        self._info = login()
        self._contexts: WeakSet[ssl.SSLContext] = WeakSet()
        """Of sessions."""
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
            self._trust()
        except (kopf.LoginError, OSError) as error:
            log.warning("credentials cannot be read again: %s", error)

    def _trust(self) -> None:
        """Sessions that are open accept the authority that vouches for the API server now, too: clusters replace theirs (`kubeadm certs renew`, a
        restored control plane). Former ones stay accepted."""
        certificates = self._info.as_ssl_context().get_ca_certs(binary_form=True)
        for context in self._contexts:
            for certificate in certificates:
                context.load_verify_locations(cadata=certificate)

    def session(self, connections: int, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """A session with at most this many connections; 0: any number. Its default headers, and a certificate of ours, are those of this moment."""
        context = self._info.as_ssl_context()
        self._contexts.add(context)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=context),
            headers=self.headers(),
            middlewares=middlewares,
            proxy=self._info.proxy_url,
            trust_env=bool(getproxies()),  # aiohttp would look for .netrc and proxies at every request, in a thread
        )
