"""Tells the kubelet whether a part of a server that has its head in another pod is ready: by the route and the port at which a head's API server
says it, since pods of a role have one template. The answers end with this process, and so with the part.

The head is there while somebody listens at the address that its parts are given to meet. Of a server whose workers are one group, that is the group's
own store. The copies of one with data-parallel copies meet elsewhere; there the head listens, as soon as its API server answers.
"""

import logging
import os
import signal
import socket
import socketserver
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from rljob_api.text import http_url
from rljob_trainer.machine import loopback

log = logging.getLogger(__name__)

READY = "/health"
"""vLLM's own, which the readiness probe of every server's pod asks for."""
CONNECT_SECONDS = 2.0
"""Time limit for reaching the head. The probe waits for 5 s."""
POLL_SECONDS = 0.5
"""Interval at which a head asks whether its API server answers, and a follower whether its head is there."""


def answer(host: str, port: int, head: tuple[str, int]) -> None:
    """Answer requests from now on, in a thread: 200 while somebody listens at `head`, where all parts have met, else 503.

    Raises OSError if the port cannot be bound.
    """
    server = _Server(host, port, head)
    threading.Thread(target=server.serve_forever, name="readiness", daemon=True).start()


def listen(port: int, meeting: tuple[str, int]) -> None:
    """In a head: listen at `meeting`, in a thread, until this process ends. Begins when the API server at `port` answers, which has waited for all
    copies. Ends this process if nobody can listen there."""
    threading.Thread(target=_listen, args=(http_url(loopback(), port), meeting), name="head", daemon=True).start()


def wait_for(head: tuple[str, int]) -> None:
    """In a follower: returns when its head listens there."""
    while not _reaches(head):
        time.sleep(POLL_SECONDS)


def _listen(url: str, meeting: tuple[str, int]) -> None:
    while not _is_ready(url):
        time.sleep(POLL_SECONDS)
    try:
        listener = _Listener(*meeting, socketserver.BaseRequestHandler)
    except OSError:
        log.exception("the other pods of this server cannot find its head: nothing can listen at %s port %s", *meeting)
        os.kill(os.getpid(), signal.SIGTERM)  # they would wait for it
        return
    listener.serve_forever()


def _is_ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url + READY, timeout=CONNECT_SECONDS):
        return True
    return False


def _reaches(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address, CONNECT_SECONDS):
        return True
    return False


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


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Also to IPv4, as vLLM does: `::` stands for every address."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Server(_Listener):
    def __init__(self, host: str, port: int, head: tuple[str, int]) -> None:
        self._head = head
        super().__init__(host, port, _Probe)

    def reaches_head(self) -> bool:
        return _reaches(self._head)
