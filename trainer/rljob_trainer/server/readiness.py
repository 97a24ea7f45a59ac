"""Tells the kubelet whether a part of a server that has its head in another pod is ready: by the route and the port at which a head's API server
says it, since pods of a role have one template. The answers end with this process, and so with the part."""

import socket
import socketserver
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

READY = "/health"
"""vLLM's own, which the readiness probe of every server's pod asks for."""
CONNECT_SECONDS = 2.0
"""Time limit for reaching the head. The probe waits for 5 s."""


def answer(host: str, port: int, head: tuple[str, int]) -> None:
    """Answer requests from now on, in a thread: 200 while somebody listens at `head`, where the workers of all parts have met, else 503.

    Raises OSError if the port cannot be bound.
    """
    server = _Server(host, port, head)
    threading.Thread(target=server.serve_forever, name="readiness", daemon=True).start()


class _Probe(BaseHTTPRequestHandler):
    server: "_Server"
    timeout = 5.0
    """Seconds for a request."""

    def do_GET(self) -> None:
        self.send_response((200 if self.server.reaches_head() else 503) if self.path == READY else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The kubelet asks every other second."""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, head: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._head = head
        super().__init__((host, port), _Probe)

    def server_bind(self) -> None:
        """Also to IPv4, as vLLM does: `::` stands for every address."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def reaches_head(self) -> bool:
        with suppress(OSError), socket.create_connection(self._head, CONNECT_SECONDS):
            return True
        return False
