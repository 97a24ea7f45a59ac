"""Bytes on the sockets of a process."""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BYTES_SENT, BYTES_SENT_AGAIN, BYTES_RECEIVED = 200, 208, 128
"""Places of tcpi_bytes_sent, tcpi_bytes_retrans and tcpi_bytes_received in Linux's struct tcp_info (include/uapi/linux/tcp.h)."""


class Traffic(NamedTuple):
    """Bytes over TCP sockets."""

    sent: int
    received: int

    @staticmethod
    def now() -> "Traffic":
        """Over all sockets of this process."""
        found = [0, 0]
        for file in [f for f in Path("/proc/self/fd").iterdir() if f.is_socket()]:
            # not all sockets are TCP's, and another thread may close one
            with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as held:
                one = Traffic.of(held)
                found = [found[0] + one.sent, found[1] + one.received]
        return Traffic(*found)

    @staticmethod
    def of(connection: socket.socket) -> "Traffic":
        """Over one socket."""
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        sent, again, received = (
            struct.unpack_from("Q", info, at)[0] for at in (BYTES_SENT, BYTES_SENT_AGAIN, BYTES_RECEIVED)
        )
        return Traffic(sent - again, received)
