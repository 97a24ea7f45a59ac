"""A custom metrics API, in the place of an adapter of a monitoring system: one metric of one object, as the API server's aggregation asks for it."""

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.control_plane import ControlPlane

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
SERVICE = "custom-metrics"


class CustomMetrics:
    """`with CustomMetrics(directory, path):` answers the metric at `path` below the API's version with `value`, 404 without one."""

    def __init__(self, directory: Path, path: str) -> None:
        self.value: str | None = None
        """A quantity."""
        self._path, self._asked = path, 0
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self._answer)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.socket = _secured(directory).wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def asked(self) -> int:
        """How often somebody wanted the metric."""
        return self._asked

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, plane: ControlPlane, namespace: str) -> None:
        """Have the API server send requests of the group here."""
        meta = {"name": SERVICE, "namespace": namespace}
        port = {"port": self._server.server_port}
        service = {"metadata": meta, "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [port]}}
        plane.call("POST", f"/api/v1/namespaces/{namespace}/services", service)
        spec = {
            "group": GROUP,
            "version": VERSION,
            "service": meta | port,
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        }
        name = f"{VERSION}.{GROUP}"
        where = "/apis/apiregistration.k8s.io/v1/apiservices"
        plane.call("POST", where, {"metadata": {"name": name}, "spec": spec})
        plane.until(name, lambda: _available(plane.call("GET", f"{where}/{name}")))

    def _answer(self, path: str) -> Any | None:
        base = f"/apis/{GROUP}/{VERSION}"
        if path == base:
            named = {
                "name": self._path.split("/", 2)[2].replace("/demo", ""),
                "namespaced": True,
                "kind": "MetricValueList",
            }
            return {
                "kind": "APIResourceList",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": [named | {"verbs": ["get"]}],
            }
        if path != f"{base}/{self._path}":
            return None
        self._asked += 1
        item = {"describedObject": {}, "metric": {"name": path.rpartition("/")[2]}, "timestamp": "2026-01-01T00:00:00Z"}
        found = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return None if self.value is None else found | {"items": [item | {"value": self.value}]}


class _Handler(BaseHTTPRequestHandler):
    answer: Any

    def do_GET(self) -> None:
        found = self.answer(self.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def _secured(directory: Path) -> ssl.SSLContext:
    key, certificate = directory / "metrics.key", directory / "metrics.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def _available(service: Any) -> bool:
    conditions = service.get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)
