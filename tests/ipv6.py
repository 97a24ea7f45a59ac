"""A machine without IPv4: a network namespace whose only interface is a loopback with ::1, which is what the host's name resolves to."""

import subprocess

import pytest

_SETUP = """
ip link set lo up && ip address del 127.0.0.1/8 dev lo || exit
hosts=$(mktemp) && echo "::1 localhost $(hostname)" >"$hosts" && mount --bind "$hosts" /etc/hosts && rm "$hosts" || exit
exec "$@"
"""
WITHOUT_IPV4 = ("unshare", "--map-root-user", "--net", "--mount", "sh", "-c", _SETUP, "sh")
"""Put in front of a command; the process keeps its pid. The hosts file is as a kubelet writes it: gloo looks up the host's name."""


def available() -> bool:
    try:
        return subprocess.run([*WITHOUT_IPV4, "ip", "-6", "address", "show", "lo"], capture_output=True).returncode == 0
    except OSError:
        return False


needs_namespaces = pytest.mark.skipif(not available(), reason="needs unshare, ip and IPv6")
