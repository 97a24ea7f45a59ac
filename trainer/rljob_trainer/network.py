"""Addresses of this machine, IPv4 or IPv6."""

import socket

import psutil


def interface_of(address: str) -> str | None:
    """The network interface that has this address, or None.

    gloo would otherwise look up the host name, which may belong to another interface.
    """
    return next(
        (name for name, known in psutil.net_if_addrs().items() if address in {a.address for a in known}),
        None,
    )


def any_address() -> str:
    """What a server binds to be reached by IPv4 and by IPv6, as far as the kernel has them."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def loopback() -> str:
    """`127.0.0.1`, or `::1` on a machine without IPv4."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"
