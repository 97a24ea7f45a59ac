"""Addresses in URLs: an IPv6 address stands in brackets (RFC 3986), and it does so in one place."""


def join_host_port(host: str, port: int) -> str:
    """`10.0.0.7:8000`, `name:8000` or `[fd00::7]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_url(host: str, port: int) -> str:
    """`http://[fd00::7]:8000`, without a path."""
    return f"http://{join_host_port(host, port)}"
