"""Which network interface carries the pod's address: gloo would otherwise look up the host name, which may be another one."""

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str | None:
    """The name of the interface that has this IPv4 address; None when no one has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return next((name for _, name in socket.if_nameindex() if _address(probe, name) == address), None)


def _address(probe: socket.socket, name: str) -> str | None:
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
