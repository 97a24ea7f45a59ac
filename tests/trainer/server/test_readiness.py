"""What the kubelet hears of a pod without an API server."""

import signal
import socket
import threading
import urllib.error
import urllib.request

import pytest

from rljob_trainer.machine import any_address, free_port
from rljob_trainer.server import readiness

HOSTS = ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]


def status(host: str, port: int, path: str = readiness.READY) -> int:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("host", HOSTS)
def test_a_part_is_ready_while_its_head_is_there(host: str) -> None:
    port, head = free_port(), socket.create_server((host.strip("[]"), 0), family=_family(host))
    readiness.answer(any_address(), port, head.getsockname()[:2])
    assert [status(h, port) for h in HOSTS] == [200] * len(HOSTS), "by both kinds of address"
    assert status(host, port, "/v1/completions") == 404
    head.close()
    assert status(host, port) == 503


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        readiness.answer("127.0.0.1", taken.getsockname()[1], ("127.0.0.1", 1))


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as head:
        readiness.answer("127.0.0.1", port, head.getsockname())
        with socket.create_connection(("127.0.0.1", port)):
            assert status("127.0.0.1", port) == 200


def test_a_head_that_nobody_could_find_ends() -> None:
    ended, port = threading.Event(), free_port()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            readiness.answer("127.0.0.1", port, taken.getsockname())  # by the same route as an API server
            readiness.listen(port, taken.getsockname())
            assert ended.wait(30)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("host", HOSTS)
def test_a_follower_waits_until_the_api_server_of_its_head_answers(host: str) -> None:
    meeting, port = (host.strip("[]"), free_port()), free_port()
    waiting = threading.Thread(target=readiness.wait_for, args=(meeting,), daemon=True)
    waiting.start()
    readiness.listen(port, meeting)
    waiting.join(2 * readiness.POLL_SECONDS)
    assert waiting.is_alive(), "the API server does not answer yet"
    with socket.create_server(("127.0.0.1", 0)) as anybody:
        readiness.answer(any_address(), port, anybody.getsockname())  # by the same route as an API server
        waiting.join(30)
        assert not waiting.is_alive()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
