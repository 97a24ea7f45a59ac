"""The socket between driver and rank 0. A message is 8 bytes of length, big-endian, then JSON."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LENGTH = struct.Struct(">Q")


def encode(message: Any) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def listen(path: Path) -> socket.socket:
    """Early, so that rank 0 can connect and beat while the driver still reads its data."""
    listener = socket.socket(socket.AF_UNIX)
    with _short(path) as address:
        listener.bind(address)
    listener.listen(1)
    return listener


def connect(path: Path) -> socket.socket:
    """Raises FileNotFoundError or ConnectionRefusedError while nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket within the 107 bytes that Linux allows, however deep its directory is."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
