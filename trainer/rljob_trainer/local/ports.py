"""Ports for processes on this machine."""

import random
import socket


def free_port() -> int:
    """Below the ports that the system hands out by itself, so that nobody takes it before its user does."""
    while _taken(port := random.randint(10_000, 30_000)):
        pass
    return port


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
