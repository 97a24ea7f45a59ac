import pytest

from rljob_api.text import http_url, join_host_port


@pytest.mark.parametrize(
    ("host", "joined"),
    [
        ("10.0.0.7", "10.0.0.7:80"),
        ("head.example", "head.example:80"),
        ("fd00::7", "[fd00::7]:80"),
        ("::1", "[::1]:80"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(host: str, joined: str) -> None:
    assert join_host_port(host, 80) == joined
    assert http_url(host, 80) == f"http://{joined}"
